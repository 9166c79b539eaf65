"""Errors, codecs, options, ids and back-off of the client."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catmq_client import Consumer, Producer, errors
from catmq_client.errors import OptionError, from_problem
from catmq_client.http import wire
from catmq_client.http.backoff import Backoff
from catmq_client.sending.ids import uuid7
from catmq_client.testing import FakeBroker

CODECS = [wire.JsonCodec(), wire.MsgpackCodec()]


@pytest.mark.parametrize("codec", CODECS)
@given(body=st.binary(max_size=100))
def test_a_body_survives_every_codec(codec: wire.Codec, body: bytes) -> None:
    sent = codec.decode(codec.encode({"messages": [{"body_bytes": body, "key": "ö"}]}))
    assert wire.body_of(sent["messages"][0]) == body
    assert sent["messages"][0]["key"] == "ö"


def test_json_carries_text_as_text_and_other_bytes_as_base64() -> None:
    codec = wire.JsonCodec()
    sent = codec.decode(
        codec.encode({"messages": [{"body_bytes": b"hi"}, {"body_bytes": b"\xff"}]})
    )
    assert sent["messages"] == [{"body": "hi"}, {"body_base64": "/w=="}]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid", errors.InvalidRequest),
        (413, "too_large", errors.InvalidRequest),
        (401, "unauthenticated", errors.Unauthenticated),
        (403, "forbidden", errors.Forbidden),
        (404, "topic_not_found", errors.NotFound),
        (409, "batch_conflict", errors.Conflict),
        (410, "replaced", errors.Gone),
        (500, "internal", errors.ServerFailed),
        (501, "not_implemented", errors.NotBuilt),
        (503, "node_unavailable", errors.Unavailable),
        (429, "busy", errors.Unavailable),
    ],
)
def test_a_problem_becomes_the_error_of_its_status(
    status: int, code: str, kind: type[Exception]
) -> None:
    error = from_problem(status, {"code": code, "detail": "why"})
    assert type(error) is kind
    assert (error.code, error.detail, error.status) == (code, "why", status)


def test_a_problem_names_its_wrong_fields() -> None:
    problem: dict[str, Any] = {
        "code": "invalid",
        "detail": "no",
        "errors": [{"field": "f", "message": "m"}],
    }
    assert str(from_problem(400, problem)) == "no\n  f: m"


@pytest.mark.parametrize("status", [502, 503, 504])
def test_an_unexplained_gateway_error_leaves_the_outcome_unknown(status: int) -> None:
    error = from_problem(status, {})
    assert error.outcome_unknown
    assert error.retriable


def test_outcome_unknown_of_a_broker_is_kept() -> None:
    error = from_problem(503, {"code": "outcome_unknown", "detail": "?", "retriable": True})
    assert error.outcome_unknown
    assert not from_problem(
        503, {"code": "node_unavailable", "detail": "?"}
    ).outcome_unknown


def test_batch_ids_are_uuid7_and_rise_with_time() -> None:
    ids = [uuid.UUID(uuid7()) for _ in range(100)]
    assert {i.version for i in ids} == {7}
    assert len(set(ids)) == 100
    assert [i.int >> 80 for i in ids] == sorted(i.int >> 80 for i in ids)


def test_backoff_doubles_with_jitter_up_to_its_limit() -> None:
    backoff = Backoff(base_ms=100, max_ms=1_000)
    delays = [backoff.next_s() for _ in range(60)]
    assert 0.05 <= delays[0] <= 0.1
    assert 0.1 <= delays[1] <= 0.2
    assert all(0.5 <= delay <= 1.0 for delay in delays[4:])
    backoff.reset()
    assert backoff.next_s() <= 0.1


@pytest.mark.parametrize(
    ("code", "longest_s"),
    [("node_unavailable", 2.0), ("outcome_unknown", 2.0), ("busy", 10.0)],
)
def test_backoff_stays_short_while_only_a_node_is_away(code: str, longest_s: float) -> None:
    error = from_problem(503, {"code": code, "detail": "", "retry_after_ms": 100})
    backoff = Backoff()
    delays = [backoff.next_s(error) for _ in range(30)]
    assert all(longest_s / 2 <= delay <= longest_s for delay in delays[10:])
    assert sorted(delays[:4]) == delays[:4]


def test_backoff_waits_at_least_as_long_as_the_broker_asks() -> None:
    error = from_problem(503, {"code": "busy", "detail": "", "retry_after_ms": 3_000})
    assert Backoff().next_s(error) == 3.0


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({"lingerms": 5}, "did you mean linger_ms"),
        ({"bootstrap_servers": "x"}, "first argument"),
        ({"linger_ms": -1}, "at least 0"),
        ({"batch_messages": "5"}, "whole number"),
        ({"batch_messages": True}, "whole number"),
        ({"compression": "lz4"}, "gzip"),
    ],
)
def test_a_wrong_producer_option_is_answered_with_a_remedy(
    options: dict[str, Any], answer: str
) -> None:
    with pytest.raises(OptionError, match=answer):
        Producer("http://127.0.0.1:1", **options)


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({"group_id": "g"}, "did you mean group"),
        ({"group": "g", "auto_offset_reset": "newest"}, "earliest, latest, none"),
        ({"group": "g", "enable_auto_commit": 1}, "True or False"),
        ({"group": "g", "on_assigned": 3}, "give a function"),
        ({"group": "g", "topics": "orders"}, "give a list"),
        ({"group": "g", "session_timeout_ms": 5}, "2000 to 300000"),
        ({"group": "g", "xyzzy": 5}, "the options are"),
        ({}, "group is missing"),
    ],
)
def test_a_wrong_consumer_option_is_answered_with_a_remedy(
    options: dict[str, Any], answer: str
) -> None:
    with pytest.raises(OptionError, match=answer):
        Consumer(transport=FakeBroker(), **options)


def test_a_none_is_taken_where_an_option_allows_it() -> None:
    consumer = Consumer(
        transport=FakeBroker(), group="g", consumer_timeout_ms=None, instance_id=None
    )
    assert consumer.options.consumer_timeout_ms is None


@pytest.mark.parametrize("urls", ["", "127.0.0.1:8000", [], "ftp://x"])
def test_a_wrong_url_is_refused_at_once(urls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CATMQ_URL", raising=False)
    with pytest.raises(OptionError, match="broker URL"):
        Producer(urls)
