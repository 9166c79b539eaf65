"""The Jobs page shows the loops of the brokers, too."""

from __future__ import annotations

import re
from html import unescape

import pytest

from catmq_site.background import table
from catmq_site.jobs import tasks
from metadata.db import leases
from tests.support.forms import browser, text

pytestmark = pytest.mark.one_engine


def test_every_loop_is_shown_with_the_process_that_makes_its_passes(
    metadata_db: None,
) -> None:
    tasks.connect()
    ada = browser("ada", administrator=True)
    assert leases.acquire(name="expiry", holder="host-1:4711", ttl_s=60)
    assert leases.acquire(name="disks", holder="host-2:1", ttl_s=60)
    leases.release(name="disks", holder="host-2:1")
    page = unescape(re.sub(r"(<[^>]*>|\s)+", " ", text(ada.get("/jobs"))))
    for loop in table.loops():
        assert loop.purpose and f"{loop.name} {loop.purpose}" in page
    assert "500 ms one process of all brokers host-1:4711" in page
    assert "host-2:1" not in page  # its lease is over
    assert "until an event every broker process" in page
    assert "every broker process, once for each node" in page


def test_the_loops_have_chinese_purposes(metadata_db: None) -> None:
    tasks.connect()
    ada = browser("ada", administrator=True)
    ada.cookies["django_language"] = "zh-hans"
    page = text(ada.get("/jobs"))
    assert "移除停止心跳的成员" in page and "租约持有者" in page
