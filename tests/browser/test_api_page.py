"""The API's page: an operation is tried with the reader's key, within the page's content
security policy.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Dialog, Locator, Page

from catmq_client.admin.api import Admin
from tests.browser.browsing import tab
from tests.support.server import Server

CREATE, LIST = "#createTopic", "#listTopics"


@pytest.fixture
def page(server: Server, browser: Browser) -> Iterator[Page]:
    """The API's page; what breaks its policy or its script fails the test."""
    with tab(browser, server.url) as made:
        wrong: list[str] = []
        made.on(
            "console", lambda one: wrong.append(one.text) if "Policy" in one.text else None
        )
        made.on("pageerror", lambda one: wrong.append(str(one)))
        made.goto("/api/v1/docs")
        yield made
        assert wrong == []


def opened(page: Page, operation: str) -> Locator:
    """The form of an operation, unfolded."""
    page.click(f"{operation} details.try summary")
    return page.locator(f"{operation} form")


def test_an_operation_without_a_key_says_where_to_give_one(page: Page) -> None:
    form = opened(page, LIST)
    form.locator("button").click()
    assert form.locator("output").inner_text() == "Give an API key at the top of the page."


def test_a_list_is_shown_with_its_status_and_the_key_is_stored_nowhere(
    page: Page, server: Server, admin: Admin
) -> None:
    admin.create_topic("tried.list", queues=1)
    page.fill("#key input", server.api_key)
    form = opened(page, LIST)
    form.locator("input[name=search]").fill("tried.list")
    form.locator("button").click()
    form.locator("pre:visible").wait_for()
    assert form.locator("output").inner_text().startswith("200 OK, ")
    assert '"name": "tried.list"' in form.locator("pre").inner_text()
    stored = page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]")
    assert stored == [0, 0, ""] and server.api_key not in page.url


def test_a_change_asks_first(page: Page, server: Server, admin: Admin) -> None:
    asked: list[str] = []

    def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.accept() if len(asked) > 1 else dialog.dismiss()

    page.on("dialog", answer)
    page.fill("#key input", server.api_key)
    form = opened(page, CREATE)
    form.locator("textarea").fill('{"name": "tried.made", "queues": 1}')
    form.locator("button").click()
    assert asked == ["POST /api/v1/topics may change data of this broker. Send it?"]
    assert not list(admin.topics(search="tried.made"))
    form.locator("button").click()
    form.locator("pre:visible").wait_for()
    assert form.locator("output").inner_text().startswith("201 Created, ")
    assert [topic["name"] for topic in admin.topics(search="tried.made")] == ["tried.made"]


def test_a_wrong_body_and_a_wrong_key_are_told(page: Page) -> None:
    page.on("dialog", lambda dialog: dialog.accept())
    page.fill("#key input", "catmq_wrong")
    form = opened(page, CREATE)
    form.locator("textarea").fill("{")
    form.locator("button").click()
    assert form.locator("output").inner_text() == "The body is not JSON. Correct it."
    form.locator("textarea").fill('{"name": "<img src=x>"}')
    form.locator("button").click()
    form.locator("pre:visible").wait_for()
    assert form.locator("output").inner_text().startswith("401 ")
