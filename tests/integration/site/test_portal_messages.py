"""The search for messages on its page: one box, a range of time, one line for each message."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from messagestore.engine.messages import NewMessage
from messagestore.produce.publish import publish
from messagestore.topology import topics
from metadata.cache import snapshot
from tests.support.forms import browser as browser_of
from tests.support.forms import text
from tests.support.rows import ME


@pytest.fixture
def ada(node: str) -> Client:
    """An administrator's browser; topic orders has three messages."""
    topics.create(name="orders", queues=1, actor=ME)
    snapshot.refresh()
    messages = [
        NewMessage(body=b'{"total": 5}', key="a b", tag="new"),
        NewMessage(body=b"paid in full", key="42", headers={"source": "web"}),
        NewMessage(body=b"x" * 10_000, key="long"),
    ]
    publish(topic="orders", messages=messages, batch_id=None, actor=ME)
    return browser_of("ada", administrator=True)


def keys(browser: Client, **asked: str) -> list[str]:
    """The keys of the messages that are listed."""
    page = text(browser.get("/messages", {"topic": "orders", **asked}))
    return sorted(re.findall(r'data-label="Key" class="long[^"]*"><code>([^<]*)<', page))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["42", "a b", "long"]),
        ('key:"a b"', ["a b"]),
        ("key:42", ["42"]),
        ("tag:new", ["a b"]),
        ("paid in", ["42"]),
        ('"total": 5', ["a b"]),
        ("key:42 paid", ["42"]),
        ("key:nobody", []),
        ("header:source=web", ["42"]),
        ('header:"source=web" key:42', ["42"]),
        ("header:source=webs", []),
    ],
)
def test_one_box_finds_by_what_messages_carry(ada: Client, query: str, expected: list[str]) -> None:
    assert keys(ada, q=query) == expected


def test_a_search_is_cut_to_a_range_of_time(ada: Client) -> None:
    assert keys(ada, q="key:42", minutes="15") == ["42"]
    assert keys(ada, q="key:42", since="2020-01-01T00:00") == ["42"]
    assert keys(ada, q="key:42", until="2020-01-01T00:00") == []
    assert keys(ada, q="key:42", since="2020-01-01T00:00", until="2020-01-02T00:00") == []


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"q": "header:source"}, "Write the header as name=value."),
        ({"q": "key:1 key:2"}, "key is given twice"),
        ({"q": "key:1", "since": "yesterday"}, "must be a date and time such as 2026-11-24T09:30"),
        ({"q": "queue:x"}, "must be a whole number"),
        ({"q": "id:999999-1"}, "is not a queue of topic orders"),
    ],
)
def test_what_is_malformed_is_said(ada: Client, asked: dict[str, str], says: str) -> None:
    page = text(ada.get("/messages", {"topic": "orders", **asked}))
    assert says in page and 'role="alert"' in page


def test_a_filter_is_a_chip_that_a_click_removes(ada: Client) -> None:
    page = text(ada.get("/messages", {"topic": "orders", "key": "42", "minutes": "60"}))
    assert 'href="?topic=orders&amp;minutes=60" aria-label="Remove the filter Key: 42"' in page


def test_a_short_body_unfolds_and_a_long_one_does_not(ada: Client) -> None:
    page = text(ada.get("/messages", {"topic": "orders"}))
    assert page.count("<details><summary><code>") == 2
    assert "{\n  &quot;total&quot;: 5\n}" in page
