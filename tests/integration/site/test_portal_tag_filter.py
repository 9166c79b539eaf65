"""The preview of another tag filter says how many of the last messages it takes."""

from __future__ import annotations

import pytest
from django.test import Client

from messagestore.nodes import registry
from metadata.cache import snapshot
from metadata.groups import subscription_rows
from tests.support import failing
from tests.support.failing import ME
from tests.support.forms import browser, confirm, fields, filled, text

pytestmark = pytest.mark.one_engine

URL = "/groups/billing/of/orders"
NO_MESSAGES = "The topic has no messages yet"


@pytest.fixture
def ada(node: str, failure_node: str) -> Client:
    """An administrator's browser; `billing` reads `orders`."""
    failing.billing()
    return browser("ada", administrator=True)


def test_the_preview_counts_what_the_tags_would_take(ada: Client) -> None:
    failing.send(b"a", b"b", b"c", tag="new")
    failing.send(*[b"d"] * 999, tag="old")
    failing.send(b"e", tag="paid")
    assert "Of the last 1,000 messages 1 would match." in text(
        filled(ada, URL, tags="new || paid")
    )
    assert "Of the last 1,000 messages 999 would match." in text(
        filled(ada, URL, tags="old")
    )
    assert "would match" not in text(filled(ada, URL, retries="3")), (
        "the tags stay as they are"
    )


def test_tags_that_match_nothing_are_warned_of_and_may_be_set_all_the_same(
    ada: Client,
) -> None:
    assert NO_MESSAGES in text(filled(ada, URL, tags="nwe"))
    failing.send(b"a", tag="new")
    assert "The last message would not match." in text(filled(ada, URL, tags="nwe"))
    failing.send(b"b")
    seen = filled(ada, URL, tags="nwe")
    assert "None of the last 2 messages would match." in text(
        seen
    ) and 'class="note warn"' in text(seen)
    assert (
        subscription_rows.find_subscription(
            group="billing", topic="orders", actor=ME
        ).delivery.tags
        == ()
    )
    assert "was changed" in text(confirm(ada, URL, seen))
    assert subscription_rows.find_subscription(
        group="billing", topic="orders", actor=ME
    ).delivery.tags == ("nwe",)


def test_a_header_filter_is_typed_in_lines_tried_with_the_tags_and_set(ada: Client) -> None:
    failing.send(b"a", b"b", tag="new", headers={"region": "eu"})
    failing.send(b"c", tag="old", headers={"region": "us"})
    failing.send(b"d")
    seen = filled(ada, URL, headers="region = eu, us\n\nregion=asia\n")
    assert "Of the last 4 messages 3 would match." in text(
        seen
    ) and "region=eu,us,asia" in text(seen)
    assert "2 would match" in text(filled(ada, URL, headers="region=eu,us", tags="new"))
    assert "was changed" in text(confirm(ada, URL, seen))
    wanted = (("region", ("eu", "us", "asia")),)
    assert (
        subscription_rows.find_subscription(
            group="billing", topic="orders", actor=ME
        ).delivery.headers
        == wanted
    )
    assert fields(ada.get(URL))["headers"].strip() == "region=eu,us,asia"
    assert "Nothing changes." in text(filled(ada, URL))
    assert "Of the last 4 messages 2 would match." in text(filled(ada, URL, tags="new"))
    assert "was changed" in text(confirm(ada, URL, filled(ada, URL, headers="")))
    assert (
        subscription_rows.find_subscription(
            group="billing", topic="orders", actor=ME
        ).delivery.headers
        == ()
    )


def test_a_header_filter_that_is_wrong_is_refused_at_its_field(ada: Client) -> None:
    for typed, said in (
        ("region", "Write each header on a line, as name=value or name=value,value."),
        ("region=eu,,us", "is missing beside = or a comma"),
        ("=eu", "is no name of a header"),
    ):
        seen = filled(ada, URL, headers=typed)
        assert seen.status_code == 400 and said in text(seen)


def test_where_no_node_answers_it_is_not_known_and_says_whose_fault_that_is(
    ada: Client,
) -> None:
    failing.send(b"a", tag="new")
    registry.update(name="main", settings={"state": "offline"}, actor=ME)
    snapshot.refresh()
    seen = filled(ada, URL, tags="new")
    assert "would match is not known. Nodes that do not answer: main." in text(seen)
    assert fields(seen)["confirmed"] == "yes"


def test_an_expression_is_refused_before_it_can_be_confirmed(ada: Client) -> None:
    seen = filled(ada, URL, tags="a && b")
    assert seen.status_code == 400 and "is an expression, not a tag" in text(seen)


def test_the_figures_are_said_in_chinese(ada: Client) -> None:
    failing.send(b"a", b"b", tag="new")
    asked = {**fields(filled(ada, URL, tags="new")), "confirmed": ""}
    page = text(ada.post(URL, asked, headers={"accept-language": "zh-CN"}))
    assert "最近 2 条消息中有 2 条会匹配。" in page
