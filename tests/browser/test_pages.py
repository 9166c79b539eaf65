"""Every page in a real browser: nobody is kept out of it, and nothing on it is refused by its own policy."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage

from catmq_client import Producer
from catmq_client.admin import Admin
from tests.browser.browsing import tab
from tests.browser.conftest import enter
from tests.browser.screenshots import pages
from tests.support.server import Server

AXE = (Path(__file__).parent / "vendor/axe.min.js").read_text()
RUN = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
    .filter((one) => ["serious", "critical"].includes(one.impact))
    .map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 200)).slice(0, 3).join(" | ")}`)"""


@pytest.fixture
def something(admin: Admin, producer: Producer) -> None:
    """One of everything to be seen."""
    if not any(one["name"] == "seen" for one in admin.topics()):
        admin.create_topic("seen", queues=2)
        admin.create_group("watchers")
        admin.subscribe("watchers", "seen")
    producer.send("seen", json={"number": 1}, key="k", headers={"a": "b"})


def test_the_check_finds_what_keeps_people_out(browser: Browser) -> None:
    with tab(browser, "http://127.0.0.1") as page:
        page.set_content("<html lang=en><title>t</title><main><button></button></main>")
        page.evaluate(AXE)
        assert any(found.startswith("button-name") for found in page.evaluate(RUN))


@pytest.mark.usefixtures("something")
@pytest.mark.parametrize(("look", "wide"), [("light", 1280), ("dark", 390)])
def test_every_page_is_open_to_all_and_keeps_to_its_policy(
    server: Server, browser: Browser, look: str, wide: int
) -> None:
    complaints: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type == "error" and "404" not in message.text:
            complaints.append(f"{message.location['url']}: {message.text}")

    known = server.credentials
    with tab(browser, server.url, look=look, wide=wide) as page:
        page.on("console", hear)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        enter(page, server)
        for path in pages(known).values():
            page.goto(path)
            page.evaluate(AXE)
            complaints += [f"{path}: {found}" for found in page.evaluate(RUN)]
            if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
                complaints.append(f"{path} is wider than the window")
    assert complaints == []
