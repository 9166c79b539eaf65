"""What a page shows at first sight: figures with trends, lag bars, folded internal topics, forms
with the settings that apply, one frame for the data browser.
"""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page

from catmq_client import Producer
from catmq_client.admin.api import Admin
from tests.browser.browsing import tab
from tests.browser.conftest import enter
from tests.support.server import Server
from tests.support.waiting import until

# Font sizes of all texts that are visible on a page, in px.
FONT_SIZES = """() => [...new Set([...document.querySelectorAll("body *")]
    .filter((one) => one.checkVisibility() && [...one.childNodes].some(
        (node) => node.nodeType === 3 && node.textContent.trim()))
    .map((one) => parseFloat(getComputedStyle(one).fontSize)))].sort((a, b) => a - b)"""
SCALE = {12, 13, 14, 16, 20, 24}  # of tokens.css


@pytest.fixture
def lagging(admin: Admin, producer: Producer) -> str:
    """A group with 150 unread messages in one of two queues, and internal topics."""
    if not any(topic["name"] == "looks.mails" for topic in admin.topics()):
        for name in (
            "looks.mails",
            "looks.mails.low",
            "looks._p3.mails",
            "looks._log.events",
        ):
            admin.create_topic(name, queues=2)
        admin.create_group("lookers")
        admin.subscribe("lookers", "looks.mails")
        futures = [
            producer.send_async("looks.mails", json={}, key="one key") for _ in range(150)
        ]
        for future in futures:
            future.result()
    return "lookers"


def test_internal_topics_are_folded_under_the_topic_that_they_belong_to(
    page: Page, server: Server, browser: Browser, lagging: str
) -> None:
    # Without scripts, too.
    with tab(browser, server.url, scripts=False) as plain:
        enter(plain, server)
        for shown in (page, plain):
            shown.goto("/topics")
            row = shown.locator("main tbody tr", has_text="looks.mails")
            assert row.count() == 1, "internal topics are no rows"
            fold = row.locator("details")
            assert fold.locator("summary").inner_text().startswith("+3")
            assert not fold.locator("a").first.is_visible()
            fold.locator("summary").press("Enter")
            names = fold.locator("a").all_inner_texts()
            assert names == [
                "lookers_looks.mails_fail",
                "looks._p3.mails",
                "looks.mails.low",
            ]
            host = shown.locator("details.fold.names", has_text="virtual host looks: 1")
            host.locator("summary").press("Enter")
            assert host.locator("a").all_inner_texts() == ["looks._log.events"]
    page.clock.install()
    page.goto("/topics")
    row = page.locator("main tbody tr", has_text="looks.mails")
    row.locator("summary").click()
    row.locator("details").evaluate("fold => fold.setAttribute('data-old', '')")
    with page.expect_response("**/topics"):
        page.clock.run_for(6_000)

    def is_open_again() -> bool:
        # The script opens it 20 ms after the swap, by a timer, and this clock stands still.
        page.clock.run_for(50)
        return row.locator("details[open]:not([data-old])").count() == 1

    until(is_open_again)


def test_a_lag_bar_says_in_words_what_its_length_shows(page: Page, lagging: str) -> None:
    page.goto(f"/groups/{lagging}")
    table = page.get_by_role("region").filter(has_text="looks.mails/0").first
    bars = table.get_by_role("img")
    labels = bars.evaluate_all("all => all.map((one) => one.getAttribute('aria-label'))")
    assert sorted(labels) == [
        "0 unread messages; a full bar is 150",
        "150 unread messages; a full bar is 150",
    ]
    widths = bars.locator("rect").evaluate_all(
        "all => all.map((one) => Number(one.getAttribute('width')))"
    )
    assert sorted(widths) == [0, 100]
    assert "Epoch" not in page.locator("main").inner_text()
    assert page.locator("h2", has_text="Offset resets").count() == 0, "there were none"


def test_the_overview_has_five_figures_four_with_a_trend(page: Page, lagging: str) -> None:
    def trends() -> int:
        page.goto("/")
        return page.locator(".tile .spark").count()

    until(lambda: trends() == 4, limit_s=90, every_s=1)
    assert page.locator(".tile").count() == 5
    assert page.locator(".inventory li").count() == 6


@pytest.mark.parametrize(
    "path",
    ["/", "/topics", "/groups/lookers", "/topics/looks.mails/settings", "/audit", "/nodes"],
)
def test_a_page_keeps_to_one_scale_of_type(page: Page, lagging: str, path: str) -> None:
    page.goto(path)
    sizes = set(page.evaluate(FONT_SIZES))
    assert sizes <= SCALE and len(sizes) >= 3


def test_a_form_shows_the_settings_that_apply_to_the_mode(page: Page, lagging: str) -> None:
    page.goto(f"/groups/{lagging}/settings")
    assert page.locator("#id_max_active_members").is_visible()
    assert page.locator("#id_lease_ms").count() == 0
    page.goto("/create/group")
    assert not page.locator("#id_lease_ms").is_visible()
    assert not page.get_by_text("Share groups", exact=True).is_visible()
    page.select_option("#id_mode", "share")
    assert page.locator("#id_lease_ms").is_visible()
    assert not page.locator("#id_max_active_members").is_visible()
    page.fill("#id_name", "sharers")
    page.click("main form.card button.main-act")
    page.click("[data-confirm]")
    page.wait_for_selector(".note.success")
    page.goto("/groups/sharers/settings")
    assert page.locator("#id_lease_ms").is_visible()
    assert page.locator("#id_max_active_members").count() == 0


def test_rows_of_the_audit_log_have_two_lines_at_most(page: Page, lagging: str) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto("/audit")
    # Other tests make names of 80 characters, which need more lines.
    heights = page.locator("main tbody tr").evaluate_all(
        "rows => rows.filter((row) => !/\\w{60}/.test(row.innerText))"
        ".map((row) => row.getBoundingClientRect().height)"
    )
    # Two lines of 14 px, their spacing and the padding of the row.
    assert len(heights) >= 5 and max(heights) <= 60


def test_the_data_browser_has_the_menu_of_the_console(page: Page, lagging: str) -> None:
    refused: list[str] = []
    page.on(
        "console",
        lambda message: refused.append(message.text) if message.type == "error" else None,
    )
    for path in ("/admin/", "/admin/metadata/topic/", "/admin/metadata/auditlog/"):
        page.goto(path)
        menu = page.locator("nav.side a[aria-current]")
        assert menu.inner_text().strip() == "Data browser"
        assert set(page.evaluate(FONT_SIZES)) <= SCALE, path
    page.locator("#result_list tbody a").first.click()
    page.wait_for_selector(".readonly")
    assert page.locator("nav.side a[aria-current]").count() == 1
    assert refused == []


def test_the_login_of_the_data_browser_is_that_of_the_console(
    server: Server, browser: Browser
) -> None:
    with tab(browser, server.url) as stranger:
        stranger.goto("/admin/metadata/topic/")
        assert stranger.locator("main.lone form.card").count() == 1
        known = server.credentials
        stranger.fill("#id_username", known["CATMQ_ADMIN_USER"])
        stranger.fill("#id_password", known["CATMQ_ADMIN_PASSWORD"])
        stranger.click("form.card button")
        stranger.wait_for_selector("#result_list")
        assert stranger.url.endswith("/admin/metadata/topic/")


@pytest.mark.parametrize("path", ["/", "/topics", "/audit", "/groups/lookers", "/admin/"])
def test_a_phone_reads_a_page_without_scrolling_sideways(
    server: Server, browser: Browser, lagging: str, path: str
) -> None:
    with tab(browser, server.url, wide=390, high=844) as phone:
        enter(phone, server)
        phone.goto(path)
        assert phone.evaluate("document.documentElement.scrollWidth") <= 390
