"""Ten tasks of operators, each from the first page in at most three clicks; what is typed
is no click.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from catmq_client import HttpTransport, Message, Producer
from catmq_client.admin.api import Admin
from catmq_client.admin.dead_letters import DeadLetters
from tests.browser.browsing import changes_to, confirm, figure, fill, log_in, tab
from tests.browser.conftest import enter
from tests.browser.reading import reading
from tests.support.server import Server
from tests.support.waiting import until

MOST = 3  # clicks
DEAD = 1_000
WAIT_S = 90


class Operator:
    """A person at the first page, whose clicks are counted."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0
        page.goto("/")

    def click(self, selector: str, text: str = "") -> None:
        self.clicks += 1
        self.page.locator(selector, has_text=text or None).first.click()
        self.page.wait_for_load_state("load")

    def ask(self, words: str) -> None:
        """Types into the palette, and takes the first result."""
        self.page.keyboard.press("Control+k")
        self.page.keyboard.type(words)
        self.page.wait_for_selector("#palette-found li a")
        before = self.page.url
        self.page.keyboard.press("Enter")
        self.page.wait_for_url(lambda url: url != before)

    def fill(self, **fields: str) -> None:
        for name, value in fields.items():
            self.page.fill(f'main [name="{name}"]', value)

    def change(self) -> None:
        """Asks for the preview, and confirms."""
        self.click("main form.card button.main-act")
        self.confirm()

    def confirm(self) -> None:
        self.click("[data-confirm]")
        self.page.wait_for_selector(".note.success")


@pytest.fixture(scope="module")
def desk(server: Server, browser: Browser) -> Iterator[Page]:
    """The page at which all tasks are done: one login is enough."""
    with tab(browser, server.url) as made:
        enter(made, server)
        yield made


@pytest.fixture
def operator(desk: Page, shop: None) -> Iterator[Operator]:
    made = Operator(desk)
    yield made
    assert 1 <= made.clicks <= MOST


@pytest.fixture
def shop(admin: Admin, producer: Producer) -> None:
    """Topic `shop` with messages, which group `parcels` has not read: it has no members."""
    if any(one["name"] == "shop" for one in admin.topics()):
        return
    admin.create_topic("shop", queues=2)
    admin.create_group("parcels")
    admin.subscribe("parcels", "shop")
    for number in range(20):
        producer.send("shop", json={"number": number}, key=f"order-{number}")


def run(page: Page, job: str) -> None:
    """Runs a job now, as figures of lists are those that it saw."""
    page.goto(f"/jobs/{job}/run")
    confirm(page)


def test_which_group_lags_and_why(operator: Operator) -> None:
    page = operator.page
    run(page, "record_lag")
    until(
        lambda: page.goto("/") and page.locator("a[href='/groups/parcels']").count(),
        limit_s=WAIT_S,
        every_s=1,
    )
    operator.click("main a[href='/groups/parcels']")
    assert "The group has no members" in page.locator("#why").inner_text()


def test_a_message_by_its_key_and_its_life(operator: Operator) -> None:
    operator.ask("key:order-7 shop")
    operator.click("main td a code")
    assert '"number": 7' in operator.page.locator("main pre").last.inner_text()
    assert "parcels: not read yet" in operator.page.locator("ol.life").inner_text()


def test_a_group_is_paused(operator: Operator, admin: Admin) -> None:
    operator.ask("pause parc")
    operator.confirm()
    assert admin.group("parcels")["stopped"] is True
    assert figure(operator.page, "State") == "paused"
    operator.ask("resume parc")
    operator.confirm()


def test_a_topic_is_expanded(operator: Operator, admin: Admin) -> None:
    operator.ask("expand shop")
    operator.fill(queues="2")
    operator.change()
    assert len([*admin.queues("shop")]) == 4


def test_who_changed_it(operator: Operator, server: Server) -> None:
    admin = server.credentials["CATMQ_ADMIN_USER"]
    fill(operator.page, "/topics/shop/settings", retention_days="3")
    confirm(operator.page)
    operator.page.goto("/")
    operator.ask("shop")
    operator.click(".tabbar a", "Changes")
    assert admin in changes_to(operator.page, "retention_days", "3").first.inner_text()


def test_a_colleague_gets_read_only_rights(
    operator: Operator, server: Server, browser: Browser
) -> None:
    operator.ask("create a user")
    operator.fill(name="vera", password="enough characters")
    operator.change()
    with tab(browser, server.url) as hers:
        log_in(hers, "vera", "enough characters")
        hers.click("nav.side a[data-key=t]")
        hers.click("main td a[href='/topics/shop']")
        assert hers.locator("main .head h1").inner_text() == "shop"
        assert hers.locator("main .head a.button").count() == 0, "she looks, and no more"
        refused = hers.goto("/topics/shop/settings")
        assert refused is not None and refused.status == 403


def test_when_the_disk_is_full(operator: Operator) -> None:
    operator.click("nav.side a", "Nodes")
    operator.click("main td a code", "main")
    assert operator.page.locator(".tile", has_text="Full in").count() == 1
    assert re.search(
        r"[1-9].* [KMGT]?i?B$",
        operator.page.locator(".tile", has_text="Free space").inner_text(),
    )


def test_an_alarm_on_lag(operator: Operator, admin: Admin) -> None:
    operator.ask("settings parcels")
    operator.fill(alarm_lag="500")
    operator.change()
    assert admin.group("parcels")["alarm_lag"] == 500


def test_a_report_is_made(operator: Operator) -> None:
    operator.ask("create a report")
    operator.page.select_option('main [name="name"]', "volume")
    operator.change()
    names = operator.page.locator("main table thead th").all_text_contents()
    rows = operator.page.locator(
        "main tbody tr", has=operator.page.locator("td:text-is('shop')")
    )
    cells = rows.locator(f"td:nth-child({names.index('messages') + 1})").all_inner_texts()
    assert sum(map(int, cells)) == 20


def test_a_thousand_dead_letters_are_redriven(
    operator: Operator, server: Server, admin: Admin
) -> None:
    page = operator.page
    failed = DeadLetters(HttpTransport(server.url, api_key=server.api_key))
    admin.create_topic("broken", queues=1)
    admin.create_group("menders")
    admin.subscribe("menders", "broken")
    admin.change_subscription("menders", "broken", retries=0)
    with Producer(server.url, api_key=server.api_key) as producer:
        for receipt in [producer.send_async("broken", b"x") for _ in range(DEAD)]:
            receipt.result()
    with reading(server, group="menders", topic="broken", handler=refuse):
        until(lambda: dead(failed) == DEAD, limit_s=WAIT_S, every_s=0.5)
    run(page, "check_health")
    until(
        lambda: page.goto("/") and page.locator("#dead a[href*=menders]").count(),
        limit_s=WAIT_S,
        every_s=1,
    )
    operator.click("#dead a[href*=menders]")
    operator.click("main .head a.button.primary", "1,000")
    assert "1000" in page.locator("main").inner_text()
    operator.confirm()
    until(lambda: dead(failed) == 0, limit_s=WAIT_S, every_s=0.5)


def refuse(message: Message) -> None:
    raise LookupError("nobody has it")


def dead(failed: DeadLetters) -> int:
    return sum(one["count"] for one in failed.summary("menders")["errors"])
