"""Forms: dates in the zone of the browser, fields that only one choice needs, sections."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Browser, Page

from catmq_client.admin.api import Admin
from tests.browser.browsing import fill, tab
from tests.browser.conftest import enter
from tests.support.server import Server


@pytest.fixture
def group(admin: Admin) -> str:
    """A group that reads a topic."""
    if not any(one["name"] == "former" for one in admin.groups()):
        admin.create_topic("forms", queues=1)
        admin.create_group("former")
        admin.subscribe("former", "forms")
    return "former"


def _shown(page: Page, name: str) -> bool:
    return page.locator(f'main [name="{name}"]').is_visible()


def test_a_reset_takes_the_time_of_the_browser(
    server: Server, browser: Browser, group: str
) -> None:
    with tab(browser, server.url, zone="Asia/Shanghai") as page:
        enter(page, server)
        page.goto(f"/groups/{group}/reset")
        assert (
            not _shown(page, "at")
            and not _shown(page, "offset")
            and not _shown(page, "source_group")
        )
        page.select_option("main [name=to]", "time")
        assert _shown(page, "at") and not _shown(page, "offset")
        label = page.locator("main label", has_text="Asia/Shanghai")
        assert label.inner_text() == "Date and time, Asia/Shanghai"
        page.fill("main [name=at]", "2026-11-20T08:00:00")
        page.click("main form.card button.main-act")
        carried = page.locator('main input[type=hidden][name="at"]').input_value()
        assert carried.replace("T", " ") == "2026-11-20 00:00:00"


def test_quick_buttons_fill_in_the_time(
    server: Server, browser: Browser, group: str
) -> None:
    with tab(browser, server.url, zone="America/New_York") as page:
        enter(page, server)
        page.goto(f"/groups/{group}/reset")
        page.select_option("main [name=to]", "time")
        page.click("main .times button >> text=1 hour ago")
        page.click("main form.card button.main-act")
        carried = page.locator('main input[type=hidden][name="at"]').input_value()
        meant = datetime.fromisoformat(carried).replace(tzinfo=UTC)
        assert abs(datetime.now(UTC) - timedelta(hours=1) - meant) < timedelta(minutes=2)


def test_what_was_refused_stands_in_the_zone_of_the_browser(
    server: Server, browser: Browser, group: str
) -> None:
    with tab(browser, server.url, zone="Asia/Shanghai") as page:
        enter(page, server)
        fill(
            page,
            f"/groups/{group}/reset",
            to="time",
            at="2026-11-20T08:00:00",
            minutes_ago="5",
        )
        assert "not both" in page.inner_text("main")
        assert page.input_value("main [name=at]") == "2026-11-20T08:00"


def test_a_form_without_scripts_is_utc_and_shows_all(
    server: Server, browser: Browser, group: str
) -> None:
    with tab(browser, server.url, scripts=False, zone="Asia/Shanghai") as page:
        enter(page, server)
        page.goto(f"/groups/{group}/reset")
        assert _shown(page, "at") and _shown(page, "offset")
        assert "Date and time, UTC" in page.inner_text("main") and not page.is_visible(
            "main .times"
        )
