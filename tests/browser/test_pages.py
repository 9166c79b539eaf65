"""Every page in a real browser: nobody is kept out of it, and nothing on it is refused by
its own policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.urls import resolve
from playwright.sync_api import Browser, ConsoleMessage, Page

from catmq_client import HttpTransport, Message, Producer
from catmq_client.admin.api import Admin
from catmq_client.admin.dead_letters import DeadLetters
from portal.urls import urlpatterns
from tests.browser.browsing import confirm, fill, tab
from tests.browser.conftest import enter
from tests.browser.reading import reading
from tests.browser.screenshots import PLANTED, pages
from tests.support.server import Server
from tests.support.waiting import until

AXE = (Path(__file__).parent / "vendor/axe.min.js").read_text()
RUN = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
    .filter((one) => ["serious", "critical"].includes(one.impact))
    .map((one) =>
    `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 200)).slice(0, 3).join(" | ")}`)"""


FORMS: dict[str, dict[str, str]] = {
    "/create/topic": {"name": "walked", "queues": "2"},
    "/create/group": {"name": "walkers"},
    "/create/key": {"name": "walked", "produce": "*"},
    "/topics/seen/settings": {"retention_days": "3"},
    "/topics/seen/expand": {"queues": "1"},
    "/topics/seen/shrink": {"count": "1"},
    "/topics/seen/send": {"body": "[1]"},
    "/topics/seen/delete": {"confirm": "seen"},
    "/groups/watchers/settings": {"session_timeout_ms": "20000"},
    "/groups/watchers/reset": {"to": "latest"},
    "/groups/watchers/subscribe": {"topic": "seen"},
    "/groups/watchers/of/seen": {"retries": "3"},
    "/groups/watchers/dead/redrive": {"error": "LookupError"},
    "/groups/watchers/dead/drop": {"error": "LookupError"},
    # refused: the form with its errors
    "/create/topic?": {"name": "not a name", "queues": "2"},
}
LONG = {"lines": [f"line {number} of a long message" for number in range(2_000)]}


@pytest.fixture
def something(server: Server, admin: Admin, producer: Producer) -> None:
    """One of everything to be seen: among them a long message, one that waits for a retry,
    and one dead.
    """
    if any(one["name"] == "seen" for one in admin.topics()):
        return
    admin.create_topic("seen", queues=2)
    producer.send("seen", json=LONG, key="k", headers={"a": "b"})
    failures = DeadLetters(HttpTransport(server.url, api_key=server.api_key))
    for group, retries in (("watchers", 0), ("retriers", 3)):
        admin.create_group(group)
        admin.subscribe(group, "seen")
        admin.change_subscription(group, "seen", retries=retries, retry_delays_s=[3600])
    with (
        reading(server, group="watchers", topic="seen", handler=refuse),
        reading(server, group="retriers", topic="seen", handler=refuse),
    ):
        until(lambda: list(failures.messages("watchers")), limit_s=90, every_s=0.2)
        until(lambda: failures.failed("retriers")["messages"], limit_s=90, every_s=0.2)


def refuse(message: Message) -> None:
    """A handler that takes nothing."""
    raise LookupError(f"nobody wants {message.key}")


def test_the_check_finds_what_keeps_people_out(browser: Browser) -> None:
    with tab(browser, "http://127.0.0.1") as page:
        page.set_content("<html lang=en><title>t</title><main><button></button></main>")
        page.evaluate(AXE)
        assert any(found.startswith("button-name") for found in page.evaluate(RUN))


NO_PICTURE = {
    # no pages of their own
    "filter-delete", "filter-save", "logout", "set_language", "theme",
    # files, options
    "export", "message-body", "messages-download", "names", "report-csv", "report-parquet",
    # of what passes
    "alarm-acknowledge", "alarms-acknowledge", "recall", "repair", "group-undo",
    "run-release", "token-delete",  # likewise
}  # fmt: skip


@pytest.mark.usefixtures("something")
def test_every_route_has_its_picture(server: Server) -> None:
    paths = {
        **pages(server.credentials, topic="seen", group="watchers"),
        **dict.fromkeys(PLANTED, ""),
    }
    shown = {
        resolve(urlsplit(path or f"/{name}").path).url_name
        for name, path in paths.items()
        if name != "lost"
    }
    assert {one.name for one in urlpatterns} - shown == NO_PICTURE


@pytest.mark.everyday
@pytest.mark.usefixtures("something")
def test_the_six_most_used_pages_show_their_subject(
    server: Server, browser: Browser
) -> None:
    shown = {
        "/": "watchers",  # its dead letter is a problem
        "/topics": "seen",
        "/topics/seen": "watchers",
        "/groups/watchers": "seen",
        "/messages?topic=seen": "line 0 of a long message",
        "/groups/watchers/failures": "LookupError",
    }
    with walking(server, browser, look="light", wide=1280) as (page, complaints):

        def shows(path: str, text: str) -> bool:
            page.goto(path)
            return text in page.locator("main").inner_text()

        for path, text in shown.items():
            # A job counts dead letters, so that of the first page appears some seconds
            # later.
            until(partial(shows, path, text), limit_s=90, every_s=1)
            complaints += complaints_of(page, path)
    assert complaints == []


LOOKS = pytest.mark.parametrize(("look", "wide"), [("light", 1280), ("dark", 390)])


@pytest.mark.usefixtures("something")
@LOOKS
def test_every_page_is_open_to_all_and_keeps_to_its_policy(
    server: Server, browser: Browser, look: str, wide: int
) -> None:
    with walking(server, browser, look=look, wide=wide) as (page, complaints):
        walk = pages(server.credentials, topic="seen", group="watchers")
        assert {"dead", "message", "subscription", "topic-queue"} < set(walk)
        for path in (*walk.values(), "/groups/retriers/failures"):
            page.goto(path)
            complaints += complaints_of(page, path)
    assert complaints == []


@pytest.mark.usefixtures("something")
@LOOKS
def test_what_forms_would_do_is_open_to_all_too(
    server: Server, browser: Browser, look: str, wide: int
) -> None:
    with walking(server, browser, look=look, wide=wide) as (page, complaints):
        for path, fields in FORMS.items():
            fill(page, path, **fields)
            complaints += complaints_of(page, f"what {path} would do")
        page.keyboard.press("?")
        complaints += complaints_of(page, "the keys")
    assert complaints == []


@pytest.mark.usefixtures("something")
@LOOKS
def test_what_opens_on_pages_is_open_to_all(
    server: Server, browser: Browser, look: str, wide: int
) -> None:
    with walking(server, browser, look=look, wide=wide) as (page, complaints):
        for path in (
            "/messages?topic=seen&key=k",
            "/topics/seen",
            "/groups/watchers",
            "/topics?q=seen",
        ):
            page.goto(path)
            page.evaluate(
                "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
            )
            assert page.locator("main details[open]").count() >= 1
            complaints += complaints_of(page, f"all that opens on {path}")
        page.keyboard.press("Control+k")
        page.keyboard.type("seen")
        page.wait_for_selector("#palette-found li a")
        complaints += complaints_of(page, "the palette")
    assert complaints == []


@pytest.mark.usefixtures("something")
@LOOKS
def test_a_report_is_drawn_for_all(
    server: Server, browser: Browser, look: str, wide: int
) -> None:
    with walking(server, browser, look=look, wide=wide) as (page, complaints):
        fill(page, "/create/report", name="volume", engine="direct")
        confirm(page)
        assert page.locator(".bars rect").count() >= 1
        complaints += complaints_of(page, "a report")
    assert complaints == []


@contextmanager
def walking(
    server: Server, browser: Browser, *, look: str, wide: int
) -> Iterator[tuple[Page, list[str]]]:
    """An administrator's page in a look, and what its browser complains of."""
    complaints: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type == "error" and not any(
            status in message.text for status in ("400", "404")
        ):
            complaints.append(f"{message.location['url']}: {message.text}")

    with tab(browser, server.url, look=look, wide=wide) as page:
        page.on("console", hear)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        enter(page, server)
        yield page, complaints


def complaints_of(page: Page, what: str) -> list[str]:
    """What keeps people out of the page that is shown, or lies beside the window."""
    page.evaluate(AXE)
    found = [f"{what}: {one}" for one in page.evaluate(RUN)]
    if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
        found.append(f"{what} is wider than the window")
    return found
