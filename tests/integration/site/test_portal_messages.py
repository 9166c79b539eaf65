"""The search for messages on its page: one box, a range of time, one line for each message."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client

from messagestore.engine.messages import NewMessage
from messagestore.produce.publish import publish
from messagestore.topology import topics
from metadata.cache import snapshot
from metadata.config import config
from portal.views.messages import exporting, finding
from tests.support.forms import browser as browser_of
from tests.support.forms import text
from tests.support.rows import ME

pytestmark = pytest.mark.one_engine


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
def test_one_box_finds_by_what_messages_carry(
    ada: Client, query: str, expected: list[str]
) -> None:
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
        (
            {"q": "key:1", "since": "yesterday"},
            "must be a date and time such as 2026-11-24T09:30",
        ),
        ({"q": "queue:x"}, "must be a whole number"),
        ({"q": "id:999999-1"}, "is not a queue of topic orders"),
    ],
)
def test_what_is_malformed_is_said(ada: Client, asked: dict[str, str], says: str) -> None:
    page = text(ada.get("/messages", {"topic": "orders", **asked}))
    assert says in page and 'role="alert"' in page


def test_a_filter_is_a_chip_that_a_click_removes(ada: Client) -> None:
    page = text(ada.get("/messages", {"topic": "orders", "key": "42", "minutes": "60"}))
    assert (
        'href="?topic=orders&amp;minutes=60" aria-label="Remove the filter Key: 42"' in page
    )


def test_a_short_body_unfolds_and_a_long_one_does_not(ada: Client) -> None:
    page = text(ada.get("/messages", {"topic": "orders"}))
    assert len(re.findall(r'<details data-keep="[0-9]+-[0-9]+"><summary><code>', page)) == 2
    assert "{\n  &quot;total&quot;: 5\n}" in page


def test_columns_are_chosen_by_the_url_and_remembered(ada: Client) -> None:
    asked = {"topic": "orders", "columns": "offset,nonsense,key"}
    for page in (
        text(ada.get("/messages", asked)),
        text(ada.get("/messages", {"topic": "orders"})),
    ):
        assert re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', page) == [
            "Message",
            "Offset",
            "Key",
        ]
    page = text(ada.get("/messages", {"topic": "orders", "columns": "key"}))
    assert 'href="?topic=orders&amp;columns=key" aria-current="true">Key' in page, (
        "the last one stays"
    )


def test_a_search_within_a_queue_goes_on_after_what_was_shown(ada: Client) -> None:
    queue = re.search(
        r"<code>([0-9]+)-0</code>", text(ada.get("/messages", {"topic": "orders"}))
    )
    assert queue is not None
    messages = [NewMessage(body=b"more", key=f"k{n}") for n in range(60)]
    publish(topic="orders", messages=messages, batch_id=None, actor=ME)
    asked = {"q": f"queue:{queue[1]} offset:2"}
    first = text(ada.get("/messages", {"topic": "orders", **asked}))
    following = re.search(r'href="\?([^"]*after=[^"]*)"', first)
    assert following is not None
    words = dict(one.split("=") for one in following[1].replace("&amp;", "&").split("&"))
    assert keys(ada, **asked, after=words["after"]) == sorted(
        f"k{n}" for n in range(49, 60)
    )


def test_a_live_tail_shows_the_latest_and_what_matches(ada: Client) -> None:
    page = text(ada.get("/messages", {"topic": "orders", "tail": "1"}))
    assert 'hx-trigger="tick from:body"' in page and "The latest messages first" in page
    assert keys(ada, tail="1") == ["42", "a b", "long"]
    assert keys(ada, tail="1", q="tag:new") == ["a b"]
    assert keys(ada, tail="1", q="tag:new", until="2020-01-01T00:00") == ["a b"], (
        "it is about now"
    )
    page = text(ada.get("/messages", {"topic": "orders", "tail": "1", "queue": "99999"}))
    assert "is not a queue of topic orders" in page
    assert 'hx-trigger="tick from:body"' not in text(
        ada.get("/messages", {"topic": "orders"})
    )


def lines(browser: Client, **asked: str) -> list[dict[str, Any]]:
    """The messages of a download."""
    answer = browser.get("/export/messages", {"topic": "orders", **asked})
    assert answer.status_code == 200 and answer["Content-Type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.content.splitlines()]


def test_what_was_found_is_downloaded_and_no_more(ada: Client) -> None:
    (found,) = lines(ada, q="tag:new")
    assert (found["key"], found["body"], "body_base64" in found) == (
        "a b",
        '{"total": 5}',
        False,
    )
    assert {one["key"] for one in lines(ada)} == {"42", "a b", "long"}
    publish(
        topic="orders",
        messages=[NewMessage(body=b"\xff", key="=1+1")],
        batch_id=None,
        actor=ME,
    )
    answer = ada.get(
        "/export/messages", {"topic": "orders", "q": "key:=1+1", "format": "csv"}
    )
    (row,) = csv.DictReader(io.StringIO(text(answer)))
    assert (row["key"], row["body"], row["body_base64"]) == ("'=1+1", "", "/w==")
    assert 'filename="orders-messages.csv"' in answer["Content-Disposition"]


def test_a_download_is_bounded_and_says_so(
    ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "MAX_MESSAGES", 5)
    messages = [NewMessage(body=b"x", key=f"k{n}", tag="many") for n in range(7)]
    publish(topic="orders", messages=messages, batch_id=None, actor=ME)
    answer = ada.get("/export/messages", {"topic": "orders", "tag": "many"})
    assert len(answer.content.splitlines()) == 5
    assert 'filename="orders-messages-part.jsonl"' in answer["Content-Disposition"]
    monkeypatch.setattr(finding, "config", replace(config, max_pull_messages=2))
    assert len(lines(ada, tag="many")) == 5, "in steps"


def test_a_download_is_masked_as_the_page_is(ada: Client) -> None:
    bob = browser_of("bob")
    assert all("body" not in one and one["headers"] is None for one in lines(bob))
    assert (
        bob.get("/export/messages", {"topic": "orders", "contains": "paid"}).status_code
        == 403
    )
    assert (
        bob.get("/export/messages", {"topic": "orders", "format": "xml"}).status_code == 400
    )
    assert bob.get("/export/messages").status_code == 400


def test_a_message_shows_its_trace_and_leads_to_the_others_of_it(ada: Client) -> None:
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    good = {"traceparent": f"00-{trace}-{span}-01"}
    messages = [
        NewMessage(body=b"1", headers=good, trace_id=trace),
        NewMessage(body=b"2", headers={"traceparent": f"00-{trace}-{span}-1"}),
    ]
    first, bad = publish(topic="orders", messages=messages, batch_id=None, actor=ME)
    page = text(ada.get(f"/messages/orders/{first.message_id}"))
    assert f"span {span}, recorded" in page
    assert f"It belongs to the trace {trace}, and was sent in its span {span}." in page
    assert f"/messages?topic=orders&amp;trace_id={trace}" in page
    page = text(ada.get(f"/messages/orders/{bad.message_id}"))
    assert "The header traceparent breaks the rules of W3C" in page
    assert "It belongs to the trace" not in page
