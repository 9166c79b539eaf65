"""W3C trace context: the rules, in the client and in the portal, and what a send makes of it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from catmq_client import Consumer, NewMessage, Producer, instrumentation
from catmq_client.contrib import otel
from catmq_client.testing import FakeBroker
from catmq_client.trace_context import (
    parse_traceparent,
    parse_tracestate,
    read_trace_context,
)
from metadata.rules import trace_context as of_portal

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"
# Header, and whether it is sampled; None: it breaks the rules.
HEADERS = {
    GOOD: True,
    f"00-{TRACE}-{SPAN}-00": False,
    f"00-{TRACE}-{SPAN}-ff": True,
    f"00-{TRACE}-{SPAN}-fe": False,
    # A later version may have more fields, after a dash.
    f"01-{TRACE}-{SPAN}-01": True,
    f"cc-{TRACE}-{SPAN}-01-what-comes": True,
    f"cc-{TRACE}-{SPAN}-01.what": None,
    f"cc-{TRACE}-{SPAN}-01x": None,
    # Version 00 has none, and ff is no version.
    f"{GOOD}-more": None,
    f"{GOOD}-": None,
    f"ff-{TRACE}-{SPAN}-01": None,
    f"00-{'0' * 32}-{SPAN}-01": None,
    f"00-{TRACE}-{'0' * 16}-01": None,
    # Upper case, other characters, other lengths, white space.
    GOOD.upper(): None,
    f"00-{TRACE[:-1]}g-{SPAN}-01": None,
    f"00-{TRACE[:-1]}-{SPAN}-01": None,
    f"00-{TRACE}0-{SPAN}-01": None,
    f"00-{TRACE}-{SPAN}-1": None,
    f"0-{TRACE}-{SPAN}-01": None,
    f" {GOOD}": None,
    f"{GOOD} ": None,
    f"{GOOD}\n": None,
    GOOD.replace("-", "_"): None,
    f"00-{TRACE}-{SPAN}": None,
    f"\u0660\u0660-{TRACE}-{SPAN}-01": None,  # digits, and not of ASCII
    "": None,
    "junk": None,
}


@pytest.mark.parametrize("header", HEADERS)
def test_client_and_portal_read_a_traceparent_by_the_rules(header: str) -> None:
    sampled = HEADERS[header]
    context, shown = parse_traceparent(header), of_portal.parse_traceparent(header)
    if sampled is None:
        assert context is None and shown is None
    else:
        assert context is not None and context[:3] == (TRACE, SPAN, sampled)
        assert shown == context[:3]


MEMBERS_33 = ",".join(f"k{n}=v" for n in range(33))


@pytest.mark.parametrize(
    ("header", "read"),
    [
        ("a=1", "a=1"),
        ("a=1,b=2", "a=1,b=2"),
        ("\ta=1 ,, b=2\t,", "a=1,b=2"),
        ("1a@vendor=x", "1a@vendor=x"),
        ("a_-*/9=!~ z", "a_-*/9=!~ z"),
        (f"{'k' * 256}={'v' * 256}", f"{'k' * 256}={'v' * 256}"),
        (MEMBERS_33.rpartition(",")[0], MEMBERS_33.rpartition(",")[0]),
        # One member that breaks the rules makes all of it invalid.
        (MEMBERS_33, ""),
        ("a=1,a=2", ""),
        ("a=1,B=2", ""),
        ("1a=1", ""),
        ("a@1b=1", ""),
        ("a@b@c=1", ""),
        ("a =1", ""),
        ("a=", ""),
        ("a", ""),
        ("a=b=c", ""),
        ("a=\x7f", ""),
        ("a=é", ""),
        ("a=1\n", ""),
        (f"{'k' * 257}=1", ""),
        (f"a={'v' * 257}", ""),
        (f"{'t' * 242}@v=1", ""),
        (f"t@{'v' * 15}=1", ""),
        (None, ""),
    ],
)
def test_a_tracestate_is_valid_as_a_whole_or_left_out(
    header: str | None, read: str
) -> None:
    assert parse_tracestate(header) == read


def test_tracestate_means_nothing_without_a_valid_traceparent() -> None:
    assert read_trace_context({"traceparent": "junk", "tracestate": "a=1"}) is None
    assert read_trace_context({"tracestate": "a=1"}) is None
    assert read_trace_context(None) is None
    context = read_trace_context({"traceparent": GOOD, "tracestate": "a=1, b=2"})
    assert context == (TRACE, SPAN, True, "a=1,b=2")


@pytest.fixture
def broker() -> FakeBroker:
    fake = FakeBroker()
    fake.create_topic("orders", queues=1)
    fake.subscribe("billing", "orders")
    return fake


def test_a_send_gets_the_trace_id_of_its_header_and_its_reader_the_context(
    broker: FakeBroker,
) -> None:
    with Producer(transport=broker) as producer:
        producer.send("orders", b"1", headers={"traceparent": GOOD})
        # An id that the application gives comes first, and a bad header is sent as it is.
        producer.send("orders", b"2", headers={"traceparent": GOOD}, trace_id="own")
        producer.send("orders", b"3", headers={"traceparent": "junk"})
        producer.send_batch("orders", [NewMessage(b"4", headers={"traceparent": GOOD})])
        producer.send("orders", b"5", headers={"Traceparent": GOOD})
    stored = broker.messages("orders")
    assert [one.trace_id for one in stored] == [TRACE, "own", None, TRACE, None]
    with Consumer(group="billing", topics=["orders"], transport=broker) as consumer:
        messages = consumer.poll(10, timeout_s=10)
    parents = [one.trace_context and one.trace_context.parent_id for one in messages]
    assert parents == [SPAN, SPAN, None, SPAN, None]


def test_a_handler_is_called_directly_without_an_instrumentation() -> None:
    def handler(message: Any) -> None:
        raise AssertionError

    assert instrumentation.wrap_handler(handler, group="g") is handler
    headers = {"h": "v"}
    assert instrumentation.inject(headers) is headers


def test_without_opentelemetry_the_extra_is_named_and_nothing_else_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As if it were not installed, wherever the tests run.
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "catmq_client.contrib.otel.spans", raising=False)
    with pytest.raises(ImportError, match="give the client its extra otel"):
        otel.instrument()
    with otel.process([], group="billing") as span:
        assert span is None
