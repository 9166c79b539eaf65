"""Reading a topic as Arrow: every message once, nothing skipped silently, no position moved."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from catmq_client import HttpTransport, Transport, frames
from catmq_client.errors import (
    AnswerLost,
    BodyNotText,
    ConnectFailed,
    Forbidden,
    NotFound,
    OffsetsMissing,
    OptionError,
    Unavailable,
)
from catmq_client.frames import OffsetsMissingWarning, ReadProgress, pages, ranges
from catmq_client.http.wire import JsonCodec
from metadata import actors
from metadata.cache import snapshot
from metadata.nodes import node_rows
from tests.support.broker import Broker
from tests.support.links import Fault, Link
from tests.support.tampering import age, declare_gap, raise_low, remove

BINARY = b"\x00\xff\xfe'\\"


@pytest.fixture
def transport(broker: Broker) -> Iterator[HttpTransport]:
    """Requests to the broker with an API key that has all rights."""
    transport = HttpTransport(broker.url, api_key=broker.api_key, discover=False)
    yield transport
    transport.close()


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of five messages, so that few messages are several pages."""
    monkeypatch.setattr(pages, "PAGE_ROWS", 5)


def send(broker: Broker, count: int, topic: str = "single", **fields: Any) -> None:
    """Send messages whose bodies are their numbers."""
    messages = [{"body": str(number), **fields} for number in range(count)]
    broker.ok("POST", f"/topics/{topic}/messages", {"messages": messages})


class HookedTransport:
    """A transport that calls `before[n]` before the n-th request for messages, from 1."""

    def __init__(
        self, transport: Transport, before: Mapping[int, Callable[[], object]]
    ) -> None:
        self._transport, self._before = transport, before
        self._requests = 0

    def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        if path.endswith("/messages"):
            self._requests += 1
            self._before.get(self._requests, lambda: None)()
        return self._transport.request(method, path, **more)


def offsets(table: pa.Table) -> list[int]:
    return list(table["offset"].to_pylist())


def test_a_table_has_each_message_with_its_types(
    broker: Broker, topic: str, transport: HttpTransport
) -> None:
    queues = [q["queue"] for q in broker.ok("GET", f"/topics/{topic}")["queues"]]
    sent = [
        {"body": "tea", "key": "k", "tag": "new", "headers": {"a": "1", "b": "ü"}},
        {"body_base64": "AP/+J1w=", "trace_id": "t-1"},
        {"body": "", "headers": {}},
    ]
    for queue in reversed(queues):
        messages = [{**message, "queue": queue} for message in sent]
        broker.ok("POST", f"/topics/{topic}/messages", {"messages": messages})
    table = frames.read(topic, transport=transport)
    assert table.schema == pa.schema(
        {
            "queue": pa.int64(),
            "offset": pa.int64(),
            "key": pa.string(),
            "tag": pa.string(),
            "headers": pa.map_(pa.string(), pa.string()),
            "body": pa.binary(),
            "trace_id": pa.string(),
            "attempt": pa.int32(),
            "stored_at": pa.timestamp("ms", tz="UTC"),
        }
    )
    rows = table.to_pylist(maps_as_pydicts="strict")
    assert [(row["queue"], row["offset"]) for row in rows] == [
        (queue, offset) for queue in sorted(queues) for offset in range(3)
    ]
    assert [row["key"] for row in rows[:3]] == ["k", None, None]
    assert [row["tag"] for row in rows[:3]] == ["new", None, None]
    assert [row["headers"] for row in rows[:3]] == [{"a": "1", "b": "ü"}, None, None]
    assert [row["body"] for row in rows[:3]] == [b"tea", BINARY, b""]
    assert [row["trace_id"] for row in rows[:3]] == [None, "t-1", None]
    assert {row["attempt"] for row in rows} == {0}
    assert abs(rows[0]["stored_at"] - datetime.now(UTC)) < timedelta(minutes=5)
    # Without msgspec the client speaks JSON; the table is the same.
    as_json = HttpTransport(broker.url, api_key=broker.api_key, codec=JsonCodec())
    assert frames.read(topic, transport=as_json).equals(table)
    as_json.close()


def test_rows_are_for_those_that_ask_for_them_and_objects_do_for_all(
    broker: Broker, queue: int, transport: HttpTransport
) -> None:
    send(broker, 3, headers={"a": "1"}, key="k")
    params = {"queue": queue, "offset": 1, "limit": 1}
    path = "/api/v1/topics/single/messages"
    as_rows = transport.request("GET", path, params={**params, "form": "rows"})
    stored_at_ms = as_rows["rows"][0][6]
    row = [1, "k", None, '{"a":"1"}', b"1", None, stored_at_ms, 0]
    assert as_rows == {"messages": [], "rows": [row], "scanned": 1, "next": 2}
    # Clients of earlier releases accept rows of pulls, and read objects here.
    as_objects = transport.request("GET", path, params=params)
    assert "rows" not in as_objects and as_objects["messages"][0]["key"] == "k"

    class RefusingTransport(HookedTransport):
        """Gets the refusal of a broker that does not know the parameter `form`."""

        def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if "form" in (more["params"] or {}):
                more["params"] = {**more["params"], "form": "unknown"}
            return super().request(method, path, **more)

    table = frames.read("single", transport=RefusingTransport(transport, {}))
    assert table.equals(frames.read("single", transport=transport))
    assert table.num_rows == 3


def test_a_read_joins_no_group(
    broker: Broker, queue: int, transport: HttpTransport
) -> None:
    send(broker, 3)
    broker.ok("POST", "/groups", {"name": "billing"})
    broker.ok("POST", "/groups/billing/subscriptions", {"topic": "single"})
    before = broker.ok("GET", "/groups/billing/offsets")
    assert frames.read("single", transport=transport).num_rows == 3
    after = broker.ok("GET", "/groups/billing/offsets")
    committed = [[q["committed"] for q in state["queues"]] for state in (before, after)]
    assert committed[0] == committed[1]
    assert [group["name"] for group in broker.ok("GET", "/groups")["groups"]] == ["billing"]


def test_an_empty_topic_is_an_empty_table(
    broker: Broker, topic: str, transport: HttpTransport
) -> None:
    table = frames.read(
        topic, columns=["body", "queue"], decode="utf-8", transport=transport
    )
    assert (table.num_rows, table.schema) == (
        0,
        pa.schema({"body": pa.string(), "queue": pa.int64()}),
    )
    assert list(frames.batches(topic, transport=transport)) == []


def test_a_read_is_limited_by_rows_queues_and_offsets(
    broker: Broker, topic: str, transport: HttpTransport, small_pages: None
) -> None:
    first, second = sorted(
        q["queue"] for q in broker.ok("GET", f"/topics/{topic}")["queues"]
    )
    for queue in (first, second):
        send(broker, 12, topic, queue=queue)

    def read(**options: Any) -> list[tuple[int, int]]:
        table = frames.read(topic, transport=transport, **options)
        return list(zip(table["queue"].to_pylist(), offsets(table), strict=True))

    every = [(queue, offset) for queue in (first, second) for offset in range(12)]
    assert read() == every
    assert read(limit=14) == every[:14]
    assert read(limit=12) == every[:12]
    assert read(queues=[second]) == every[12:]
    assert read(start="latest") == read(end="earliest") == []
    assert read(start={first: 7}, end={second: 2}) == every[7:14]
    assert read(start={first: 12, second: 11}) == every[-1:]
    assert read(queues=[first], start={first: 9}, end={first: 4}) == []


def test_a_read_begins_and_ends_at_times(
    broker: Broker, queue: int, transport: HttpTransport
) -> None:
    send(broker, 12)
    age(queue, 0, 4, seconds=7200)
    age(queue, 4, 8, seconds=3600)
    now = datetime.now(UTC)
    times = frames.read("single", transport=transport)["stored_at"].to_pylist()

    def read(**options: Any) -> list[int]:
        return offsets(frames.read("single", transport=transport, **options))

    assert read(start=now - timedelta(hours=1.5)) == list(range(4, 12))
    assert read(end=now - timedelta(hours=1.5)) == list(range(4))
    # A start is included and an end excluded, to the millisecond.
    assert read(start=times[4], end=times[8]) == list(range(4, 8))
    assert read(start=times[4] + timedelta(microseconds=1)) == list(range(8, 12))
    assert read(start=now + timedelta(days=1)) == []
    assert read(
        start=datetime(1960, 1, 1, tzinfo=UTC), end=now + timedelta(days=1)
    ) == list(range(12))


def test_messages_that_are_stored_during_a_read_are_not_part_of_it(
    broker: Broker, queue: int, transport: HttpTransport, small_pages: None
) -> None:
    send(broker, 8)
    hooked = HookedTransport(transport, {2: lambda: send(broker, 3)})
    assert offsets(frames.read("single", transport=hooked)) == list(range(8))
    assert offsets(frames.read("single", transport=transport)) == list(range(11))


def test_a_deleted_start_is_an_error_that_names_the_range_or_a_warning(
    broker: Broker, queue: int, transport: HttpTransport
) -> None:
    send(broker, 10)
    raise_low(queue, 4)
    remove(queue, 0, 1, 2, 3)
    with pytest.raises(
        OffsetsMissing, match=rf"queue {queue}: offsets 1 … 3 \(3 mess"
    ) as error:
        frames.batches("single", start={queue: 1}, transport=transport)
    assert error.value.missing == (queue, 1, 4, "expired")
    with pytest.warns(OffsetsMissingWarning, match="1 … 3"):
        table = frames.read(
            "single", start={queue: 1}, on_expired="warn", transport=transport
        )
    assert offsets(table) == offsets(frames.read("single", transport=transport))
    assert offsets(table) == list(range(4, 10))
    # Deleted messages may have been within the time, or not.
    with pytest.warns(OffsetsMissingWarning, match="offsets below 4 were deleted"):
        frames.read("single", start=datetime(2020, 1, 1, tzinfo=UTC), transport=transport)


def line_of(action: Callable[[], object]) -> int:
    """Return the line of this file that the warning of `action` names; a lambda has one."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    (warning,) = caught
    assert issubclass(warning.category, OffsetsMissingWarning)
    assert warning.filename == __file__
    return warning.lineno


@pytest.mark.parametrize("start", ["offset", "time"])
def test_a_warning_of_the_start_names_the_line_of_the_caller(
    broker: Broker, queue: int, transport: HttpTransport, start: str
) -> None:
    send(broker, 10)
    raise_low(queue, 4)
    remove(queue, 0, 1, 2, 3)
    first: Any = {queue: 1} if start == "offset" else datetime(2020, 1, 1, tzinfo=UTC)
    options: Any = {"start": first, "on_expired": "warn", "transport": transport}
    topic = pages.TopicReader(transport, "single", raise_expired=False, retry_s=1.0)
    plan: Any = {"queues": None, "start": first, "end": "latest"}
    for call in (
        lambda: frames.read("single", **options),
        lambda: frames.batches("single", **options),
        lambda: ranges.plan_ranges(topic, **plan),
    ):
        assert line_of(call) == call.__code__.co_firstlineno


def test_a_warning_within_a_read_names_the_line_that_reads(
    broker: Broker, queue: int, transport: HttpTransport, small_pages: None
) -> None:
    send(broker, 30)
    remove(queue, *range(6, 20))
    declare_gap(queue, 6, 20)
    for call in (
        lambda: frames.read("single", transport=transport),
        lambda: frames.batches("single", transport=transport).read_all(),
        lambda: list(frames.batches("single", transport=transport)),
    ):
        assert line_of(call) == call.__code__.co_firstlineno


@pytest.mark.parametrize("use", ["never iterated", "left early", "read to its end"])
def test_a_reader_closes_its_own_transport(
    *,
    broker: Broker,
    queue: int,
    small_pages: None,
    monkeypatch: pytest.MonkeyPatch,
    use: str,
) -> None:
    transports: list[HttpTransport] = []

    def connect(*args: Any, **more: Any) -> HttpTransport:
        transports.append(HttpTransport(*args, **more, discover=False))
        return transports[-1]

    monkeypatch.setattr(frames, "HttpTransport", connect)
    monkeypatch.setattr(frames, "BATCH_ROWS", 5)
    send(broker, 20)
    reader = frames.batches("single", urls=broker.url, api_key=broker.api_key)
    if use == "left early":
        reader.read_next_batch()
    elif use == "read to its end":
        assert reader.read_all().num_rows == 20
    (transport,) = transports
    is_open_before_drop = transport._process_session is not None
    assert is_open_before_drop == (use != "read to its end")
    del reader
    gc.collect()
    assert transport._process_session is None


@pytest.mark.parametrize("on_expired", ["raise", "warn"])
def test_retention_during_a_read_is_noticed(
    *,
    broker: Broker,
    queue: int,
    transport: HttpTransport,
    small_pages: None,
    on_expired: Any,
) -> None:
    send(broker, 20)

    def clean() -> None:
        raise_low(queue, 17)
        remove(queue, *range(17))

    hooked = HookedTransport(transport, {3: clean})
    if on_expired == "raise":
        with pytest.raises(OffsetsMissing) as error:
            frames.read("single", transport=hooked)
        assert error.value.missing == (queue, 10, 17, "expired")
    else:
        with pytest.warns(OffsetsMissingWarning, match="10 … 16"):
            table = frames.read("single", on_expired="warn", transport=hooked)
        assert offsets(table) == [*range(10), 17, 18, 19]


def test_a_declared_loss_warns_and_an_unexplained_hole_raises(
    broker: Broker, queue: int, transport: HttpTransport, small_pages: None
) -> None:
    send(broker, 30)
    # Longer than a page: a page that begins in the gap continues after it.
    remove(queue, *range(6, 20))
    declare_gap(queue, 6, 20)
    with pytest.warns(OffsetsMissingWarning, match=r"6 … 19 \(14 messages\) were lost"):
        table = frames.read("single", transport=transport)
    assert offsets(table) == [*range(6), *range(20, 30)]
    with pytest.warns(OffsetsMissingWarning, match="6 … 7"):
        assert offsets(frames.read("single", end={queue: 8}, transport=transport)) == [
            *range(6)
        ]
    remove(queue, 22)
    with (
        warnings.catch_warnings(),
        pytest.raises(OffsetsMissing, match=r"manage\.py verify") as error,
    ):
        warnings.simplefilter("ignore")
        frames.read("single", on_expired="warn", transport=transport)
    assert error.value.missing == (queue, 22, 23, "unexplained")


def test_a_body_that_is_not_text_is_named(
    broker: Broker, queue: int, transport: HttpTransport
) -> None:
    send(broker, 2)
    texts = frames.read("single", columns=["body"], decode="utf-8", transport=transport)
    assert texts["body"].to_pylist() == ["0", "1"]
    broker.ok("POST", "/topics/single/messages", {"messages": [{"body_base64": "AP8="}]})
    with pytest.raises(BodyNotText, match=rf"single, queue {queue}, offset 2: .* byte 1"):
        frames.read("single", decode="utf-8", transport=transport)
    # The error of an iteration keeps its class.
    with pytest.raises(BodyNotText) as error:
        list(frames.batches("single", decode="utf-8", transport=transport))
    assert (error.value.queue, error.value.offset) == (queue, 2)
    # A body that is not read need not be text.
    frames.read("single", columns=["key"], decode="utf-8", transport=transport)


def test_of_headers_with_the_same_name_the_last_is_kept(
    broker: Broker, queue: int, transport: HttpTransport
) -> None:
    body = b'{"messages": [{"body": "a", "headers": {"h": "1", "h": "2", "H": "3"}}]}'
    broker.ok("POST", "/topics/single/messages", body)
    (headers,) = frames.read("single", transport=transport)["headers"].to_pylist()
    assert headers == [("h", "2"), ("H", "3")]


def test_unknown_topics_and_missing_rights_are_refused_by_the_call(
    broker: Broker, queue: int, transport: HttpTransport
) -> None:
    send(broker, 1)
    with pytest.raises(NotFound) as not_found:
        frames.batches("nowhere", transport=transport)
    assert not_found.value.code == "topic_not_found"
    producer = broker.as_key({"produce": ["single"]})
    with pytest.raises(Forbidden, match="browse"):
        frames.read("single", urls=producer.url, api_key=producer.api_key)
    browser = broker.as_key({"browse": ["single"]})
    table = frames.read("single", urls=[browser.url], api_key=browser.api_key)
    assert table["body"].to_pylist() == [b"0"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"start": datetime(2026, 1, 1)}, "no time zone"),
        ({"start": "newest"}, "'earliest', 'latest'"),
        ({"end": 5}, "'earliest', 'latest'"),
        ({"start": {0: 1}}, "0 is not a queue of topic single; its queues are"),
        ({"queues": [0]}, "0 is not a queue of topic single"),
        ({"limit": 0}, "limit=0"),
        ({"limit": True}, "limit=True"),
        ({"columns": ["bodi"]}, "did you mean body"),
        ({"columns": []}, "at least one column"),
        ({"columns": ["key", "key"]}, "only once"),
        ({"decode": "latin-1"}, "write 'utf-8' or None"),
        ({"on_expired": "ignore"}, "one of raise, warn"),
        ({"retry_timeout_ms": -1}, "retry_timeout_ms=-1"),
    ],
)
def test_wrong_arguments_are_refused_with_the_remedy(
    *, broker: Broker, queue: int, transport: HttpTransport, options: Any, text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        frames.batches("single", transport=transport, **options)


def test_offsets_that_are_not_stored_yet_are_refused(
    broker: Broker, queue: int, transport: HttpTransport
) -> None:
    send(broker, 5)
    for options in ({"start": {queue: 6}}, {"end": {queue: 6}}):
        with pytest.raises(
            OptionError, match=f"offset 6 of queue {queue} is not stored yet"
        ):
            frames.read("single", transport=transport, **options)


def test_progress_counts_rows_bytes_and_offsets(
    broker: Broker, queue: int, transport: HttpTransport, small_pages: None
) -> None:
    send(broker, 12)
    states: list[ReadProgress] = []
    frames.read("single", progress=states.append, transport=transport)
    assert [(s.rows, s.bytes, s.offsets, s.total_offsets) for s in states] == [
        (5, 5, 5, 12),
        (10, 10, 10, 12),
        (12, 14, 12, 12),
    ]


def test_batches_are_bounded_by_rows_and_bytes(
    *,
    broker: Broker,
    queue: int,
    transport: HttpTransport,
    small_pages: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send(broker, 20)
    monkeypatch.setattr(frames, "BATCH_ROWS", 10)
    reader = frames.batches("single", transport=transport)
    assert isinstance(reader, pa.RecordBatchReader)
    assert [batch.num_rows for batch in reader] == [10, 10]
    monkeypatch.setattr(frames, "BATCH_BYTES", 5)
    reader = frames.batches("single", transport=transport)
    assert [batch.num_rows for batch in reader] == [5, 5, 5, 5]


def test_another_broker_continues_a_read_whose_broker_dies(
    broker: Broker, queue: int, small_pages: None
) -> None:
    send(broker, 40)
    port = int(broker.url.rpartition(":")[2])
    with Link(port).running() as first, Link(port).running() as second:
        urls = [first.url, second.url]
        both = HttpTransport(urls, api_key=broker.api_key, discover=False)
        cut: list[Fault] = []

        def cut_answers() -> None:
            cut.extend(link.cut_answer(200) for link in (first, second))

        def change_sides() -> None:
            first.restore()
            second.refuse()

        # The client may begin with either of them, so each is the only one for a while.
        hooks = {2: cut_answers, 4: first.refuse, 6: change_sides}
        hooked = HookedTransport(both, hooks)
        assert offsets(frames.read("single", transport=hooked)) == list(range(40))
        assert any(fault.hit.is_set() for fault in cut)
        both.close()


def test_a_read_without_any_broker_left_ends_with_an_error(
    broker: Broker, queue: int, small_pages: None
) -> None:
    send(broker, 30)
    with Link(int(broker.url.rpartition(":")[2])).running() as dying:
        alone = HttpTransport(dying.url, api_key=broker.api_key, discover=False)
        hooked = HookedTransport(alone, {3: dying.refuse})
        reader = frames.batches("single", retry_timeout_ms=300, transport=hooked)
        with pytest.raises((ConnectFailed, AnswerLost), match=dying.url):
            list(reader)
        alone.close()


def test_a_queue_whose_node_does_not_answer_is_an_error_unless_it_is_left_out(
    broker: Broker, queue: int, transport: HttpTransport, make_node: Callable[..., str]
) -> None:
    make_node("other")
    broker.ok("POST", "/topics/single/expand", {"queues": 1, "node": "other"})
    away = next(
        state["queue"]
        for state in broker.ok("GET", "/topics/single")["queues"]
        if state["queue"] != queue
    )
    send(broker, 2, queue=queue)
    node_rows.update(
        name="other", settings={"state": "offline"}, actor=actors.command("test")
    )
    snapshot.refresh()
    with pytest.raises(Unavailable, match=f"queue {away}: its node does not answer"):
        frames.read("single", retry_timeout_ms=100, transport=transport)
    assert frames.read("single", queues=[queue], transport=transport).num_rows == 2
