"""How pages behave: keys, what is live, what the URL holds, and what is there without
script.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Request

from catmq_client import Producer
from catmq_client.admin.api import Admin
from tests.browser.browsing import tab
from tests.browser.conftest import enter
from tests.support.server import Server
from tests.support.waiting import until


@pytest.fixture
def plain(server: Server, browser: Browser) -> Iterator[Page]:
    """A page of a browser that runs no scripts."""
    with tab(browser, server.url, scripts=False) as made:
        enter(made, server)
        yield made


@pytest.fixture
def topic(admin: Admin, producer: Producer) -> str:
    """A topic with messages and a group."""
    if not any(one["name"] == "manners" for one in admin.topics()):
        admin.create_topic("manners", queues=1)
        admin.create_group("mannerly")
        admin.subscribe("mannerly", "manners")
    producer.send("manners", json={})
    return "manners"


def test_keys_lead_to_pages_and_to_the_search(page: Page) -> None:
    for key, path in (("t", "topics"), ("g", "groups"), ("o", "")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.wait_for_url(f"**/{path}")
    page.goto("/topics")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.type("?gt")  # what is typed into a field leads nowhere
    assert page.locator("dialog[open]").count() == 0 and page.url.endswith("/topics")


def test_a_question_mark_shows_the_keys_and_escape_hides_them(page: Page) -> None:
    page.keyboard.press("?")
    assert page.locator("dialog[open] kbd").count() > 10
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    page.click("[data-help]")
    assert page.locator("dialog[open]").count() == 1 and page.url.endswith("/")


def test_the_palette_is_walked_with_the_keyboard_alone(page: Page, topic: str) -> None:
    page.goto("/topics")
    page.keyboard.press("Control+k")
    page.keyboard.type("manner")
    page.wait_for_selector("#palette-found a[href='/groups/mannerly']")
    page.keyboard.press("ArrowDown")
    assert (
        page.evaluate("document.activeElement.getAttribute('href')") == f"/topics/{topic}"
    )
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/groups/mannerly")
    page.keyboard.press("Control+k")
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0


def test_a_menu_opens_and_closes_with_the_keyboard(page: Page, topic: str) -> None:
    page.goto(f"/topics/{topic}")
    page.locator("details.menu summary").focus()
    page.keyboard.press("Enter")
    assert page.locator("details.menu[open] li a").last.inner_text() == "Delete"
    page.keyboard.press("Escape")
    assert page.locator("details.menu[open]").count() == 0
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_a_time_says_how_long_ago_and_the_exact_one_on_hover(
    page: Page, topic: str
) -> None:
    page.goto(f"/messages?topic={topic}")
    time = page.locator("main time").first
    assert "ago" in time.inner_text() and "UTC" in (time.get_attribute("title") or "")


def test_fifty_rows_take_three_screens_of_a_phone(
    server: Server, browser: Browser, producer: Producer, topic: str
) -> None:
    for answer in [
        producer.send_async(topic, json={"n": n}, key=f"key-{n}") for n in range(50)
    ]:
        answer.result()
    with tab(browser, server.url, wide=390, high=844) as phone:
        enter(phone, server)
        phone.goto(f"/messages?topic={topic}")
        assert phone.locator("main tbody tr").count() == 50
        assert phone.locator("main .card.flush").bounding_box()["height"] <= 3 * 844  # type: ignore[index]
        short = phone.locator("main tbody td:visible").count()
        phone.check("[data-all]")
        assert phone.locator("main tbody td:visible").count() > short
        assert phone.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_live_tail_shows_new_messages_until_it_is_paused(
    page: Page, producer: Producer, topic: str
) -> None:
    page.clock.install()
    page.goto(f"/messages?topic={topic}&tail=1")
    opened = page.locator("td.fold details").first
    opened.locator("summary").click()
    row = opened.get_attribute("data-keep")
    producer.send(topic, json={"said": "later"}, key="later")
    with page.expect_response("**/messages?*tail=1"):
        page.clock.run_for(6_000)
    page.locator("main tbody tr", has_text="later").wait_for()
    assert page.locator("td.fold details[open]").get_attribute("data-keep") == row, (
        "though it moved"
    )
    assert page.evaluate("document.activeElement.parentElement.dataset.keep") == row
    page.locator("[data-pause]").focus()
    page.keyboard.press("Enter")
    producer.send(topic, json={}, key="while-paused")
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request))
    page.clock.run_for(30_000)
    assert asked == []
    page.keyboard.press("Enter")
    page.locator("main tbody tr", has_text="while-paused").wait_for()


def test_messages_are_read_and_downloaded_without_script(plain: Page, topic: str) -> None:
    plain.goto("/messages")
    plain.fill("#m_topic", topic)
    plain.keyboard.press("Enter")
    plain.locator("td.fold summary").first.click()
    assert plain.locator("td.fold pre").first.is_visible()
    assert plain.locator(".scripted:visible").count() == 0
    plain.locator("details.menu summary", has_text="Columns").press("Enter")
    plain.locator(".picks a", has_text="Offset").press("Enter")
    assert plain.locator("main th", has_text="Offset").count() == 1
    plain.locator("details.menu summary", has_text="Download").press("Enter")
    with plain.expect_download() as found:
        plain.locator("details.menu a", has_text="CSV").press("Enter")
    assert found.value.suggested_filename == f"{topic}-messages.csv"


def test_a_filter_is_saved_followed_and_deleted_without_script(
    plain: Page, topic: str
) -> None:
    plain.goto(f"/topics?q={topic}")
    plain.locator(".saved summary").press("Enter")
    plain.fill("#filter_name", "mine")
    plain.keyboard.press("Enter")
    plain.wait_for_selector(".note.success")
    plain.goto("/topics")
    plain.locator(".saved a", has_text="mine").press("Enter")
    plain.wait_for_url(f"**/topics?q={topic}")
    assert plain.locator("[data-search]").input_value() == topic
    plain.locator(".saved .chips button").press("Enter")
    plain.wait_for_selector(".note.success")
    assert plain.locator(".saved .chips").count() == 0


def test_keys_and_figures_can_be_read_without_script(plain: Page, topic: str) -> None:
    plain.click("[data-help]")
    plain.wait_for_url("**/help")
    assert plain.locator("main kbd").count() > 10
    until(lambda: _sparks(plain, topic), limit_s=60, every_s=0.5)
    assert "Messages per minute" in (
        plain.locator("svg.spark").first.get_attribute("aria-label") or ""
    )
    for path in ("/", f"/topics/{topic}", "/groups/mannerly"):
        plain.goto(path)
        figures = plain.locator("figure.chart")
        assert figures.count() == 2
        for n in range(2):
            figures.nth(n).locator("summary").click()
            assert figures.nth(n).locator("tbody tr").first.is_visible()


def _sparks(page: Page, topic: str) -> int:
    page.goto(f"/topics?q={topic}")
    return page.locator("svg.spark[role=img]").count()


def test_what_is_live_says_how_old_it_is_and_rests_while_nobody_looks(
    page: Page, topic: str
) -> None:
    asked: list[Request] = []
    page.on(
        "request",
        lambda request: asked.append(request) if "hx-request" in request.headers else None,
    )
    page.clock.install()
    page.goto(f"/topics/{topic}")
    page.clock.run_for(3_000)
    assert page.locator("[data-stamp]").inner_text() == "updated 3 s ago"
    with page.expect_response(f"**/topics/{topic}"):
        page.clock.run_for(3_000)
    before = len(asked)
    assert before >= 1
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {configurable: true, get: () => true})"
    )
    page.clock.run_for(60_000)
    assert len(asked) == before
    page.evaluate("delete document.hidden")
    with page.expect_response(f"**/topics/{topic}"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_what_was_opened_stays_open_and_the_focus_where_it_was(
    page: Page, topic: str
) -> None:
    page.clock.install()
    page.goto(f"/topics/{topic}")
    page.locator("figure.chart summary").first.click()
    page.evaluate("document.querySelector('#live').dataset.old = 'yes'")
    with page.expect_response(f"**/topics/{topic}"):
        page.clock.run_for(6_000)
    page.wait_for_selector("#live:not([data-old])")
    page.clock.run_for(1_000)
    assert page.locator("figure.chart details[open]").count() == 1
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert page.locator(".chart .uplot").count() == 2


def test_the_url_holds_what_was_searched_sorted_and_chosen(
    page: Page, server: Server, browser: Browser, topic: str
) -> None:
    page.goto("/groups")
    page.fill("[data-search]", "mannerl")
    page.keyboard.press("Enter")
    page.wait_for_url("**/groups?*q=mannerl*")
    page.locator("th a", has_text="Unread").first.click()
    page.wait_for_url("**sort=-lag*")
    assert page.locator('th[aria-sort="descending"]').count() == 1
    with tab(browser, server.url) as other:
        enter(other, server)
        other.goto(page.url)
        assert other.locator("[data-search]").input_value() == "mannerl"
        assert (
            other.locator("main tbody tr").count()
            == page.locator("main tbody tr").count()
            >= 1
        )
        assert other.locator('th[aria-sort="descending"]').count() == 1
    page.goto(f"/topics/{topic}")
    page.locator('a[href="?span=1d"]').click()
    page.wait_for_url("**span=1d")
    assert page.locator('a[href="?span=1d"][aria-current]').count() == 1
    assert page.locator(".chart").first.locator("details tbody tr").count() > 90


# Pixels of the line that is drawn last, where a step of a chart of thirty steps is.
INK = """([canvas, over], n) => {
    const box = canvas.getBoundingClientRect(), place = over.getBoundingClientRect();
    const scale = canvas.width / box.width;
    const x = Math.round((place.left - box.left + n / 29 * place.width) * scale);
    const top = Math.round((place.top - box.top) * scale),
    height = Math.round(place.height * scale) + 3;
    const all = canvas.getContext("2d").getImageData(x - 1, top, 3, height).data;
    const probe = document.createElement("i");
    probe.style.color = "var(--series-3)";
    document.body.append(probe);
    const wanted = getComputedStyle(probe).color.match(/[0-9]+/g).map(Number);
    probe.remove();
    const near = (at) => all[at + 3] > 200 && wanted.every((part,
    n) => Math.abs(all[at + n] - part) < 24);
    return [...Array(all.length / 4).keys()].filter((pixel) => near(4 * pixel)).length;
}"""


def test_a_chart_has_gaps_where_no_value_is_and_points_where_one_stands_alone(
    page: Page,
) -> None:
    page.goto("/parts")
    page.wait_for_selector(".chart .uplot")
    chart = page.locator(".chart").first
    parts = [
        chart.locator("canvas").element_handle(),
        chart.locator(".u-over").element_handle(),
    ]
    ink = [page.evaluate(f"(parts) => ({INK})(parts, {n})", parts) for n in range(30)]
    assert [n for n, pixels in enumerate(ink) if not pixels] == [10, 11, 13, 14]


def test_the_events_of_a_chart_are_named_and_hide_no_line(page: Page) -> None:
    page.goto("/parts")
    page.wait_for_selector(".chart .uplot")
    chart = page.locator(".chart").first
    names = ["Alarm raised", "Alarm resolved", "Offsets reset", "Rebalance"]
    assert [
        name.strip() for name in chart.locator(".event-kinds span").all_inner_texts()
    ] == names
    strips = chart.locator(".happened")
    assert str(strips.nth(2).get_attribute("title")).endswith("Alarm: far behind")
    looks = strips.evaluate_all("all => all.map((one) => getComputedStyle(one).background)")
    assert all("rgba(0, 0, 0, 0)" in look and "gradient" not in look for look in looks), (
        looks
    )
    pixels = chart.locator("canvas").element_handle()
    assert page.evaluate(f"(canvas) => ({RED})(canvas)", pixels) > 20, (
        "the canvas has the line of the alarm"
    )


# Pixels in the colour of alarms, below what is drawn over them.
RED = """(canvas) => {
    const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const reddish = (at) => all[at + 3] > 100 && all[at] > 140 && all[at + 1] < 90 && all[at +
    2] < 110;
    return [...Array(all.length / 4).keys()].filter((pixel) => reddish(4 * pixel)).length;
}"""
# Draws a chart once more: its last step has no values, nor has any step one of the third
# line.
REDRAW = """() => {
    const figure = document.querySelector(".chart"), copy = figure.cloneNode(true);
    copy.id = "live";
    copy.querySelector(".plot").replaceChildren();
    const rows = [...copy.querySelectorAll("tbody tr")];
    for (const cell of [...rows.at(-1).cells].slice(1, 4)) cell.dataset.value = "";
    for (const row of rows) row.cells[3].dataset.value = "";
    figure.after(copy);
    copy.dispatchEvent(new CustomEvent("htmx:afterSettle", { bubbles: true }));
}"""


# Draws a chart of two lines of which the first ends two steps before the second.
UNEVEN = """() => {
    const figure = document.querySelector(".chart"), copy = figure.cloneNode(true);
    copy.id = "live";
    copy.querySelector(".plot").replaceChildren();
    const rows = [...copy.querySelectorAll("tbody tr")];
    for (const row of rows.slice(-2)) row.cells[1].dataset.value = "";
    rows.at(-3).cells[1].dataset.value = "1234";
    for (const row of rows) row.cells[3].dataset.value = "";
    figure.after(copy);
    copy.dispatchEvent(new CustomEvent("htmx:afterSettle", { bubbles: true }));
}"""


def test_each_line_of_a_legend_shows_its_own_last_value(page: Page) -> None:
    page.goto("/parts")
    page.wait_for_selector(".chart .uplot")
    page.evaluate(UNEVEN)
    entries = page.locator("#live .u-legend .u-series:visible")
    assert "1.2K" in entries.nth(1).inner_text()
    assert "\N{EN DASH}" not in entries.nth(2).inner_text()
    # Lag is counted every minute: a pointer over a step between shows the count before it.
    over = page.locator("#live .u-over")
    box = over.bounding_box()
    assert box is not None
    over.hover(position={"x": box["width"] - 2, "y": 20})
    assert "1.2K" in entries.nth(1).inner_text()


def test_the_legend_of_a_chart_shows_the_last_known_values(page: Page) -> None:
    page.goto("/parts")
    page.wait_for_selector(".chart .uplot")
    page.evaluate(REDRAW)
    entries = page.locator("#live .u-legend .u-series:visible").all_inner_texts()
    assert len(entries) == 3 and not [one for one in entries if "\N{EN DASH}" in one], (
        entries
    )
    assert "sent" in entries[1] and "handled" in entries[2]
