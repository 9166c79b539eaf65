"""What must not be seen twice: keys and passwords, through double clicks, reloads and the
way back.
"""

from __future__ import annotations

from contextlib import suppress

from playwright.sync_api import Error, Page

from catmq_client.admin.api import Admin
from tests.browser.browsing import confirm, fill
from tests.support.waiting import until

SECRET = "a very secret one \N{ALIEN MONSTER}"


def settled(page: Page) -> str | None:
    """What the page holds; None while it is replaced by another."""
    try:
        return page.content()
    except Error:
        return None


def test_a_key_that_was_asked_for_by_a_double_click_is_made_and_shown_once(
    page: Page, admin: Admin
) -> None:
    fill(page, "/create/key", name="till", produce="orders*")
    page.dblclick("[data-confirm]")
    page.wait_for_selector("#secret")
    plaintext = page.inner_text("#secret")
    assert plaintext.startswith("catmq_")
    page.reload()  # sends the form again
    page.wait_for_selector("main#content")
    assert plaintext not in page.content() and "carried out once" in page.content()
    for way in (page.go_back, page.go_forward):
        # ERR_CACHE_MISS: the browser would have to send the form again
        with suppress(Error):
            way()
        assert plaintext not in until(lambda: settled(page))
    page.goto("/keys?q=till")
    assert page.locator("main tbody tr").count() == 1 and plaintext not in page.content()


def test_a_password_is_in_no_page_after_it_was_typed(page: Page) -> None:
    fill(page, "/create/user", name="pia", password=SECRET)
    assert SECRET not in page.content()
    assert page.locator('input[type="password"]').count() == 0
    confirm(page)
    assert SECRET not in page.content()
    fill(
        page,
        "/create/node",
        name="far",
        engine="mysql",
        host="127.0.0.1",
        port="1",
        database="x",
        password=SECRET,
    )
    assert (
        page.locator(".badge.bad").count() == 1
        and page.locator("[data-confirm]").count() == 0
    )
    assert SECRET not in page.content() and page.input_value("#id_password") == ""
