"""Pages of the longest names on a phone: nothing scrolls sideways, in whatever zone."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from catmq_client import Producer
from catmq_client.admin.api import Admin
from tests.browser.browsing import tab
from tests.browser.conftest import enter
from tests.browser.screenshots import pages
from tests.support.server import Server

# 100 characters, of all kinds that are allowed
LONG = "".join(["A.name-with_every", "0123456789", "Z" * 73])
OFF_SCREEN = "document.documentElement.scrollWidth > innerWidth"


@pytest.fixture
def long_names(admin: Admin, producer: Producer) -> None:
    """A topic and a group of the longest names, with a message."""
    assert len(LONG) == 100
    if not any(one["name"] == LONG for one in admin.topics()):
        admin.create_topic(LONG, queues=1)
        admin.create_group(LONG)
        admin.subscribe(LONG, LONG)
    producer.send(LONG, json={"a": 1}, key="k" * 200)


@pytest.mark.usefixtures("long_names")
def test_nothing_scrolls_sideways_on_a_phone(server: Server, browser: Browser) -> None:
    known = {**server.credentials}
    chosen = {
        path for path in pages(known, topic=LONG, group=LONG).values() if LONG in path
    }
    lists = {
        "/",
        "/topics",
        "/groups",
        "/subscriptions",
        "/messages",
        "/audit",
        f"/search?q={LONG}",
    }
    wide = []
    with tab(browser, server.url, wide=390, high=844, zone="Pacific/Kiritimati") as page:
        enter(page, server)
        for path in sorted(chosen | lists):
            answer = page.goto(path)
            assert answer is not None and answer.status == 200, path
            if page.evaluate(OFF_SCREEN):
                wide.append(path)
    assert wide == [] and len(chosen) > 15
