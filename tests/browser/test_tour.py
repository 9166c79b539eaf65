"""What people do with the portal, in a real browser against a real server. The tour is in
Chinese.
"""

from __future__ import annotations

import gzip
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from catmq_client import Message, Producer
from catmq_client.admin.api import Admin
from tests.browser.browsing import changes_to, confirm, figure, fill, log_in, tab
from tests.browser.conftest import enter
from tests.browser.reading import reading
from tests.support.server import Server
from tests.support.waiting import until

LIVE_S = 60  # for live figures to move; they do so every 5 s
LOGGED = ("创建 主题", "创建 消费组", "创建 订阅", "重置 位点", "重新投递 死信")


def events(data: Path) -> Iterator[dict[str, object]]:
    """The real input."""
    with gzip.open(data, "rt") as lines:
        yield from map(json.loads, lines)


def total(page: Page) -> int:
    """The tile "Total sent" of a topic's page."""
    return int(figure(page, "Total sent").replace(",", ""))


def unread(page: Page) -> str:
    """The tile "Unread messages" of a group's page in Chinese."""
    return figure(page, "未读消息")


def charted(page: Page) -> float:
    """Messages by the rates of the chart of what was sent, each of ten seconds."""
    cells = page.locator(".chart").first.locator("details tbody td:nth-child(2)")
    return float(
        cells.evaluate_all(
            "all => all.reduce((sum, one) => sum + 10 * one.dataset.value, 0)"
        )
    )


def send(producer: Producer, topic: str, data: Path, *, count: int) -> list[str]:
    """Sends some of the real input; the message ids of the receipts."""
    futures = [
        producer.send_async(topic, json=one, key=str(one["path"]))
        for one in itertools.islice(events(data), count)
    ]
    return [future.result().message_id for future in futures]


@pytest.fixture
def chinese_page(server: Server, browser: Browser) -> Iterator[Page]:
    """An administrator's page in Chinese; all other browser tests are in English."""
    with tab(browser, server.url, language="zh-CN") as page:
        enter(page, server)
        yield page


def test_a_tour(chinese_page: Page, server: Server, producer: Producer, data: Path) -> None:
    page, topic, group = chinese_page, "tour", "tourists"
    page.goto("/create/topic")
    assert page.locator("h1").inner_text() == "创建主题"
    fill(page, "/create/topic", name=topic, queues="2")
    confirm(page)
    fill(page, "/create/group", name=group)
    confirm(page)
    fill(page, f"/groups/{group}/subscribe", topic=topic, start="earliest")
    confirm(page)
    ids = send(producer, topic, data, count=300)

    _find_by_key(page, topic)
    _stop_reset_and_start(page, group, ids)
    _fail_and_redrive(page, server, topic, group)
    _see_it_in_the_audit_log(page, topic, group)


def _find_by_key(page: Page, topic: str) -> None:
    page.goto(f"/messages?topic={topic}&key=README.md")
    page.locator("td a code").first.click()
    page.wait_for_url("**/messages/*/*")
    assert '"path": "README.md"' in page.locator("pre code").first.inner_text()


def _stop_reset_and_start(page: Page, group: str, ids: list[str]) -> None:
    page.goto(f"/groups/{group}/stop")
    confirm(page)
    fill(page, f"/groups/{group}/reset", to="latest")
    skipped = page.locator("main tbody td:last-child").all_inner_texts()
    assert sum(int(text.replace(",", "")) for text in skipped) == len(ids)
    page.goto(f"/groups/{group}")
    assert unread(page) == str(len(ids))  # a preview changes nothing
    fill(page, f"/groups/{group}/reset", to="latest")
    confirm(page)
    assert unread(page) == "0"
    page.locator('main a[href$="/undo"]').first.click()
    confirm(page)
    assert unread(page) == str(len(ids))
    page.goto(f"/groups/{group}/start")
    confirm(page)


def _fail_and_redrive(page: Page, server: Server, topic: str, group: str) -> None:
    """A handler fails for one file; its message is dead at once, found among the failed and
    brought back.
    """
    fill(page, f"/groups/{group}/of/{topic}", retries="0")
    confirm(page)
    mended = threading.Event()

    def handle(message: Message) -> None:
        if message.key == "README.md" and not mended.is_set():
            raise LookupError("nobody has the address of README.md")

    with reading(server, group=group, topic=topic, handler=handle):
        until(
            lambda: _among_the_failed(page, group, "LookupError"),
            limit_s=LIVE_S,
            every_s=0.5,
        )
        assert page.locator("main tbody code", has_text="README.md").count() >= 1
        mended.set()
        page.locator('main tbody a[href*="/dead/redrive"]').first.click()
        page.click("main form.card button.main-act")
        confirm(page)
        until(
            lambda: not _among_the_failed(page, group, "LookupError"),
            limit_s=LIVE_S,
            every_s=0.5,
        )


def _among_the_failed(page: Page, group: str, error: str) -> bool:
    page.goto(f"/groups/{group}/failures")
    return page.locator('a[href*="error="] code', has_text=error).count() > 0


def _see_it_in_the_audit_log(page: Page, topic: str, group: str) -> None:
    of_topic, *of_group = LOGGED
    page.goto(f"/audit?name={topic}")
    assert of_topic in page.locator("main").inner_text()
    page.goto(f"/audit?name={group}")
    text = page.locator("main").inner_text()
    assert [words for words in of_group if words not in text] == []
    for setting, value in (("stopped", "true"), ("stopped", "false"), ("retries", "0")):
        assert changes_to(page, setting, value).count() >= 1, (setting, value)


def test_figures_move_while_messages_come_and_match_the_receipts(
    page: Page, admin: Admin, producer: Producer, data: Path
) -> None:
    admin.create_topic("moving", queues=2)
    stop = threading.Event()
    receipts: list[str] = []

    def keep_sending() -> None:
        while not stop.wait(0.05):
            receipts.extend(send(producer, "moving", data, count=10))

    thread = threading.Thread(target=keep_sending)
    thread.start()
    try:
        page.goto("/topics/moving")
        readings = [total(page)]
        for _ in range(2):
            until(lambda: total(page) != readings[-1], limit_s=LIVE_S, every_s=0.2)
            readings.append(total(page))
    finally:
        stop.set()
        thread.join()
    assert readings == sorted(set(readings))
    until(lambda: total(page) == len(receipts), limit_s=LIVE_S, every_s=0.5)
    until(lambda: 0.95 < charted(page) / len(receipts) < 1.05, limit_s=LIVE_S, every_s=0.5)


def test_a_user_without_rights_is_refused_by_button_and_by_hand_made_post(
    server: Server, browser: Browser, page: Page, admin: Admin
) -> None:
    admin.create_group("guarded")
    fill(page, "/create/user", name="uma", password="enough characters")
    confirm(page)
    with tab(browser, server.url) as hers:
        log_in(hers, "uma", "enough characters")
        hers.goto("/groups/guarded")
        assert hers.locator('a[href="/groups/guarded/stop"]').count() == 0
        token = (
            hers.locator('input[name="csrfmiddlewaretoken"]').first.get_attribute("value")
            or ""
        )
        form = {"csrfmiddlewaretoken": token, "confirmed": "yes"}
        answer = hers.request.post(f"{server.url}/groups/guarded/stop", form=form)
        assert answer.status == 403
    assert admin.group("guarded")["stopped"] is False


def test_strange_texts_and_bodies_are_shown_and_do_no_harm(
    page: Page, admin: Admin, producer: Producer
) -> None:
    admin.create_topic("strange", queues=1)
    evil = "<script>document.title='owned'</script>"
    bodies = [
        b"\xff\xfe\x00\x01",
        b"[" * 1000 + b"]" * 1000,
        evil.encode(),
        "\N{ALIEN MONSTER}".encode(),
        b"x" * (1 << 20),
    ]
    keys = ["'\"%_\\", evil, "👾", "50% off", "plain"]
    ids = [
        producer.send("strange", body, key=key).message_id
        for body, key in zip(bodies, keys, strict=True)
    ]
    for message_id in ids:
        answer = page.goto(f"/messages/strange/{message_id}")
        assert answer is not None and answer.status == 200 and page.title() != "owned"
    for key in keys:
        page.goto("/messages?topic=strange")
        page.click("details.fields summary")
        page.fill("#m_key", key)
        page.click("main form button.main-act")
        page.wait_for_selector("main table")
        assert page.locator("main tbody tr").count() == 1
    for path in ("topics", "groups", "audit", "jobs", "consumers", "alarms"):
        page.goto(f"/{path}")
        page.locator("[data-search]").fill(f"{evil} ' \" % _ 👾")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/{path}?*")
        assert page.title() != "owned" and page.locator(".empty").count() >= 1
