"""Sending: batches, order, retries, and what is said when it cannot be done."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from catmq_client import CatmqError, NewMessage, Producer, Receipt
from catmq_client.errors import (
    AnswerLost,
    BufferFull,
    Closed,
    Conflict,
    ConnectFailed,
    DeliveryTimeout,
    Forbidden,
    InvalidRequest,
    MessageRefused,
    NotFound,
    OptionError,
    SendOutcomeUnknown,
    ServerFailed,
    Unavailable,
    from_problem,
)
from catmq_client.http import wire
from catmq_client.sending.receipts import Batch
from catmq_client.sending.routing import Kind, slot_of
from catmq_client.sending.send_request import NextStep, after_failure
from tests.support.simulated import SimulatedBroker

PUBLISH = r"POST .*/messages"
LIMIT_S = 10.0
Make = Callable[..., Producer]


@pytest.fixture(params=["json", "msgpack"])
def broker(request: pytest.FixtureRequest) -> SimulatedBroker:
    made = SimulatedBroker(
        codec=wire.JsonCodec() if request.param == "json" else wire.MsgpackCodec()
    )
    made.create_topic("t", queues=4, nodes=["a", "b"])
    return made


@pytest.fixture
def make(broker: SimulatedBroker) -> Iterator[Make]:
    made: list[Producer] = []

    def producer(**options: Any) -> Producer:
        options = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 20, **options}
        made.append(Producer(transport=broker, **options))
        return made[-1]

    yield producer
    broker.heal()
    for one in made:
        one.close(LIMIT_S)


def bodies(broker: SimulatedBroker) -> list[bytes]:
    return [message.body for message in broker.messages("t")]


def batch_ids(broker: SimulatedBroker) -> list[str]:
    return [seen.body["batch_id"] for seen in broker.seen(PUBLISH)]


def queues_asked(broker: SimulatedBroker) -> list[set[int]]:
    return [
        {message["queue"] for message in seen.body["messages"]}
        for seen in broker.seen(PUBLISH)
    ]


def test_send_returns_where_the_message_is_stored(
    broker: SimulatedBroker, make: Make
) -> None:
    receipt = make().send(
        "t", b"\xff\x00", key="k", tag="new", headers={"h": "v"}, trace_id="x"
    )
    stored = broker.messages("t")[0]
    assert receipt == Receipt("t", stored.queue, 0, stored.message_id)
    assert (stored.body, stored.key, stored.tag) == (b"\xff\x00", "k", "new")
    assert (stored.headers, stored.trace_id) == ({"h": "v"}, "x")


def test_text_and_json_become_bytes(broker: SimulatedBroker, make: Make) -> None:
    producer = make()
    producer.send("t", "ö", queue=1)
    producer.send("t", json={"ö": [1, None]}, queue=1)
    assert bodies(broker) == ["ö".encode(), '{"ö":[1,null]}'.encode()]


def test_wrong_bodies_and_keys_are_refused_before_sending(
    broker: SimulatedBroker, make: Make
) -> None:
    wrong: Any = 5
    with pytest.raises(OptionError, match="give bytes or text"):
        make().send("t", wrong)
    with pytest.raises(OptionError, match="key=5: give text"):
        make().send("t", b"", key=wrong)
    assert not broker.seen(PUBLISH)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({}, "no body"),
        ({"body": None}, "no body"),
        ({"body": b"", "json": 1}, "both given"),
        ({"body": "x", "json": None}, "both given"),
        ({"json": float("nan")}, "finite numbers"),
        ({"json": {"a": [float("-inf")]}}, "finite numbers"),
        ({"json": {"a": {1, 2}}}, "set is not JSON"),
        ({"json": "\ud800"}, "not UTF-8"),
        (
            {"json": functools.reduce(lambda inner, _: [inner], range(100_000), 0)},
            "recursion",
        ),
    ],
)
def test_a_body_that_cannot_be_meant_is_refused_by_each_way_to_send(
    broker: SimulatedBroker, make: Make, fields: dict[str, Any], wrong: str
) -> None:
    producer = make()
    for send in (producer.send, producer.send_async, producer.send_oneway):
        with pytest.raises(OptionError, match=wrong):
            send("t", **fields)
    with pytest.raises(OptionError, match=wrong):
        producer.send_batch("t", [fields])
    assert not broker.seen(PUBLISH)


def test_none_as_json_is_null_and_a_message_of_a_batch_needs_a_body(
    broker: SimulatedBroker, make: Make
) -> None:
    producer, none = make(), cast(bytes, None)
    producer.send("t", json=None, queue=1)
    producer.send_batch("t", [{"json": None, "queue": 1}])
    assert bodies(broker) == [b"null", b"null"]
    with pytest.raises(OptionError, match="no body"):
        producer.send_batch("t", [NewMessage(none)])


def test_an_unknown_topic_is_said_at_once_with_its_remedy(make: Make) -> None:
    with pytest.raises(NotFound, match="catmq topic create nope"):
        make().send_async("nope", b"x")


def test_send_async_gathers_messages_of_a_queue_in_one_request(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(linger_ms=60_000, batch_messages=50)
    futures = [producer.send_async("t", b"%d" % n, queue=1) for n in range(100)]
    receipts = [future.get(timeout=LIMIT_S) for future in futures]
    assert [receipt.offset for receipt in receipts] == list(range(100))
    assert [len(seen.body["messages"]) for seen in broker.seen(PUBLISH)] == [50, 50]


def test_a_batch_also_goes_when_its_bytes_are_enough(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(linger_ms=60_000, batch_bytes=1_000)
    futures = [producer.send_async("t", b"x" * 400, queue=1) for _ in range(4)]
    assert [future.result(LIMIT_S).offset for future in futures[:2]] == [0, 1]


def test_linger_sends_a_lone_message(make: Make) -> None:
    assert make(linger_ms=1).send_async("t", b"x").result(LIMIT_S).offset == 0


def test_flush_does_not_wait_for_linger(broker: SimulatedBroker, make: Make) -> None:
    producer = make(linger_ms=60_000)
    future = producer.send_async("t", b"x")
    producer.flush(LIMIT_S)
    assert future.done()


def test_close_sends_what_is_left_and_refuses_more(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(linger_ms=60_000)
    with producer:
        producer.send_async("t", b"x")
    assert bodies(broker) == [b"x"]
    with pytest.raises(Closed):
        producer.send("t", b"y")


def test_keyed_messages_keep_their_order_from_many_threads(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(linger_ms=0, batch_messages=7)

    def send_all(key: str) -> None:
        for n in range(200):
            (producer.send if n % 50 == 0 else producer.send_async)("t", b"%d" % n, key=key)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(send_all, [f"key-{n}" for n in range(8)]))
    producer.flush(LIMIT_S)
    for n in range(8):
        key = f"key-{n}"
        mine = [message for message in broker.messages("t") if message.key == key]
        assert [message.body for message in mine] == [b"%d" % i for i in range(200)]
        assert {message.queue for message in mine} == {
            broker.topics.by_name["t"].slots[slot_of(key)]
        }


def test_messages_without_key_spread_over_all_queues(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make()
    assert {producer.send("t", b"x").queue for _ in range(8)} == {1, 2, 3, 4}


def test_a_lost_answer_is_repeated_with_the_same_batch_id_and_stored_once(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.fail(PUBLISH, AnswerLost("cut off"), after=True, times=2)
    receipt = make().send("t", b"x")
    assert receipt.offset == 0
    assert bodies(broker) == [b"x"]
    assert len(set(batch_ids(broker))) == 1
    assert len(batch_ids(broker)) == 3


def test_order_of_a_key_is_kept_across_retries(broker: SimulatedBroker, make: Make) -> None:
    producer = make(batch_messages=3, linger_ms=0)
    broker.fail(PUBLISH, ConnectFailed("restarting"), times=4)
    broker.fail(PUBLISH, AnswerLost("cut off"), after=True, times=2)
    futures = [producer.send_async("t", b"%d" % n, key="k") for n in range(30)]
    for future in futures:
        future.result(LIMIT_S)
    assert bodies(broker) == [b"%d" % n for n in range(30)]


def test_an_unknown_outcome_stays_with_its_queue_until_the_time_is_over(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.fail(
        PUBLISH,
        from_problem(503, {"code": "outcome_unknown", "detail": "?", "retriable": True}),
    )
    broker.fail(PUBLISH, Unavailable("down", code="node_unavailable"), times=10_000)
    with pytest.raises(SendOutcomeUnknown):
        make(delivery_timeout_ms=200).send("t", b"x")
    assert len(set(map(frozenset, queues_asked(broker)))) == 1
    assert len(set(batch_ids(broker))) == 1


def test_on_unknown_resend_may_move_after_an_unknown_outcome(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.create_topic("r", queues=2, nodes=["a", "b"], on_unknown="resend")
    broker.fail(PUBLISH, AnswerLost("cut off"), after=True)
    broker.fail(PUBLISH, Unavailable("down", code="node_unavailable"))
    make().send("r", b"x")
    assert len(broker.messages("r")) == 2


def test_a_message_without_key_moves_to_another_node_after_a_definite_refusal(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.topics.down_nodes.add("a")
    producer = make()
    receipts = [producer.send("t", b"x") for _ in range(8)]
    assert {receipt.queue for receipt in receipts} == {2, 4}
    # At most two refusals: afterwards the whole node is avoided.
    assert len(broker.seen(PUBLISH)) <= 9


def test_a_batch_that_moves_gets_a_new_batch_id(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.fail(PUBLISH, Unavailable("down", code="node_unavailable"))
    make().send("t", b"x")
    assert len(set(batch_ids(broker))) == 2
    assert len(set(map(frozenset, queues_asked(broker)))) == 2


def test_a_strict_key_waits_for_its_node(broker: SimulatedBroker, make: Make) -> None:
    key = next(str(n) for n in range(99) if slot_of(str(n)) % 4 == 0)
    broker.topics.down_nodes.add("a")
    future = make().send_async("t", b"x", key=key)
    assert broker.wait_until(lambda: len(broker.seen(PUBLISH)) > 2)
    assert not future.done()
    broker.change(broker.topics.down_nodes.clear)
    assert future.result(LIMIT_S).queue == 1


def test_an_available_key_moves_to_another_node(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.create_topic("v", queues=2, nodes=["a", "b"], keyed="available")
    broker.topics.down_nodes.add("a")
    producer = make()
    assert {producer.send("v", b"x", key=str(n)).queue for n in range(20)} == {6}


def test_a_keyed_batch_follows_its_slot_when_its_queue_is_retired(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make()
    key = next(str(n) for n in range(99) if slot_of(str(n)) % 4 == 0)
    producer.send("t", b"1", key=key)
    topic = broker.topics.by_name["t"]
    topic.queues[0].state = "retired"
    topic.slots = [2 if queue == 1 else queue for queue in topic.slots]
    producer._state.layouts.cached("t").loaded_at -= 1.0  # type: ignore[union-attr]
    futures = [producer.send_async("t", b"%d" % n, key=key) for n in (2, 3)]
    assert [future.result(LIMIT_S).queue for future in futures] == [2, 2]
    assert [message.body for message in broker.messages("t") if message.queue == 2] == [
        b"2",
        b"3",
    ]


def test_a_named_queue_that_is_closed_fails_unless_lenient(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.topics.queues[3].state = "read_only"
    with pytest.raises(Conflict, match="queue 3 is read_only"):
        make().send("t", b"x", queue=3)
    assert make().send("t", b"x", queue=3, queue_strict=False).queue != 3
    producer = make()
    wish, named = NewMessage(b"x", queue=3, queue_strict=False), NewMessage(b"y", queue=3)
    for messages in ([named, wish, named], [wish, wish], [named, wish]):
        fates = producer.send_batch("t", messages)
        for message, fate in zip(messages, fates, strict=True):
            assert isinstance(fate, Receipt if message is wish else Conflict)
            assert not isinstance(fate, Receipt) or fate.queue != 3


def test_one_wrong_message_does_not_fail_its_neighbours(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(linger_ms=60_000)
    big = b"x" * (1024 * 1024 + 1)
    results = producer.send_batch(
        "t",
        [NewMessage(b"1", queue=1), NewMessage(big, queue=1), NewMessage(b"3", queue=1)],
    )
    assert [isinstance(result, Receipt) for result in results] == [True, False, True]
    assert isinstance(results[1], InvalidRequest)
    assert bodies(broker) == [b"1", b"3"]


def test_a_refusal_that_names_no_message_is_narrowed_down(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.fail(
        PUBLISH, InvalidRequest("request over 8 MiB", code="too_large", status=413), times=3
    )
    producer = make()
    results = producer.send_batch("t", [NewMessage(b"%d" % n, queue=1) for n in range(4)])
    assert sum(isinstance(result, Receipt) for result in results) == 3
    assert len(bodies(broker)) == 3


def test_send_batch_takes_bytes_text_dicts_and_messages(
    broker: SimulatedBroker, make: Make
) -> None:
    items: list[Any] = [b"1", "2", {"json": 3, "queue": 1}, NewMessage("4", key="k")]
    results = make().send_batch("t", items)
    assert all(isinstance(result, Receipt) for result in results)
    assert sorted(bodies(broker)) == [b"1", b"2", b"3", b"4"]
    assert make().send_batch("t", []) == []
    with pytest.raises(OptionError, match="keey is not a field"):
        make().send_batch("t", [{"body": b"", "keey": "x"}])
    with pytest.raises(OptionError, match="a message of type int: give a NewMessage"):
        make().send_batch("t", [b"1", 2])


def test_send_batch_may_be_larger_than_the_buffer(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(buffer_messages=100, batch_messages=10, linger_ms=60_000)
    results = producer.send_batch("t", [b"%d" % n for n in range(1_000)])
    assert len(results) == 1_000
    assert len(bodies(broker)) == 1_000


def test_a_full_buffer_makes_a_send_wait_and_then_fail(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.fail(PUBLISH, ConnectFailed("down"), times=100_000)
    producer = make(buffer_messages=2, max_block_ms=50, delivery_timeout_ms=60_000)
    for _ in range(2):
        producer.send_async("t", b"x")
    with pytest.raises(BufferFull):
        producer.send_async("t", b"y")
    producer.send_oneway("t", b"z")
    assert producer.lost == 1
    broker.heal()
    producer.flush(LIMIT_S)
    assert bodies(broker) == [b"x", b"x"]


def test_what_was_never_stored_ends_as_delivery_timeout(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.fail(PUBLISH, ConnectFailed("down"), times=100_000)
    with pytest.raises(DeliveryTimeout, match="not stored"):
        make(delivery_timeout_ms=50).send("t", b"x")


@pytest.mark.parametrize("request_", ["GET", PUBLISH])
def test_a_broker_that_does_not_answer_is_logged_at_once_with_what_to_look_at(
    broker: SimulatedBroker, make: Make, request_: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="catmq.producer")
    logged: list[str] = []
    broker.fail(request_, ConnectFailed("http://a:8000 cannot be reached"), times=4)
    transport = Watched(broker, lambda: logged.append(caplog.text))
    with Producer(transport=transport, retry_backoff_ms=1) as producer:
        producer.send("t", b"1")
    after_first_failure = logged[1 if request_ == "GET" else 2]
    assert "http://a:8000 cannot be reached" in after_first_failure
    assert (
        "CATMQ_URL or the first argument says http://a:8000, http://b:8000"
        in after_first_failure
    )
    assert (
        caplog.text.count("cannot be reached") == 1
        and caplog.text.count("works again") == 1
    )


def test_a_message_that_never_left_the_buffer_says_so(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(linger_ms=60_000, delivery_timeout_ms=7_000)
    future = producer.send_async("t", b"1", queue=1)
    (buffer,) = producer._process_state().accumulator._buffers.values()
    buffer.batches[0].expires_at, buffer.last_error = 0.0, "a:8000 cannot be reached"
    producer.flush(LIMIT_S)
    error = str(future.exception(LIMIT_S))
    assert (
        "not tried yet: it waited in the buffer for all of delivery_timeout_ms (7 s)"
        in error
    )
    assert "the last try for its queue ended with: a:8000 cannot be reached" in error


def test_a_final_refusal_is_not_repeated(broker: SimulatedBroker, make: Make) -> None:
    broker.fail(
        PUBLISH, Forbidden("key may not produce on t", code="forbidden", status=403)
    )
    with pytest.raises(Forbidden):
        make().send("t", b"x")
    assert len(broker.seen(PUBLISH)) == 1


def test_a_partly_refused_answer_repeats_the_same_batch(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make()
    once: list[int] = []
    publish = broker.topics.publish

    def partly(name: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        results = publish(name, body)
        if once:
            return results
        once.append(1)
        return [
            {"error": {"code": "node_unavailable", "detail": "down", "retriable": True}},
            *results[1:],
        ]

    broker.topics.publish = partly  # type: ignore[method-assign]
    assert (
        len(
            producer.send_batch("t", [NewMessage(b"1", queue=1), NewMessage(b"2", queue=1)])
        )
        == 2
    )
    assert len(set(batch_ids(broker))) == 1
    assert len(bodies(broker)) == 2


def test_a_partly_stored_batch_does_not_move_when_its_node_goes_away(
    broker: SimulatedBroker, make: Make
) -> None:
    publish, down = (
        broker.topics.publish,
        {"code": "node_unavailable", "detail": "down", "retriable": True},
    )
    calls: list[int] = []

    def partly_then_not(name: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        calls.append(1)
        if len(calls) == 2:
            raise Unavailable("down", code="node_unavailable")
        results = publish(name, body)
        return [{"error": down}, *results[1:]] if len(calls) == 1 else results

    broker.topics.publish = partly_then_not  # type: ignore[method-assign]
    assert len(make().send_batch("t", [NewMessage(b"1"), NewMessage(b"2")])) == 2
    assert len(set(batch_ids(broker))) == 1
    assert len(bodies(broker)) == 2


def test_a_message_refused_for_good_is_its_own_error(
    broker: SimulatedBroker, make: Make
) -> None:
    refusal = {"error": {"code": "invalid", "detail": "no", "retriable": False}}
    broker.topics.publish = lambda name, body: [refusal]  # type: ignore[method-assign]
    with pytest.raises(MessageRefused, match="no"):
        make().send("t", b"x")


def test_oneway_counts_what_was_lost(broker: SimulatedBroker, make: Make) -> None:
    producer = make()
    producer.send_oneway("t", b"1")
    producer.flush(LIMIT_S)
    broker.fail(PUBLISH, Forbidden("no"))
    producer.send_oneway("t", b"2")
    producer.flush(LIMIT_S)
    assert (bodies(broker), producer.lost) == ([b"1"], 1)


def test_a_done_callback_is_called_once_even_when_added_late(make: Make) -> None:
    called: list[bool] = []
    future = make(linger_ms=1).send_async("t", b"x")
    future.add_done_callback(lambda f: called.append(f.done()))
    future.result(LIMIT_S)
    late = threading.Event()
    future.add_done_callback(lambda f: late.set())
    assert late.wait(LIMIT_S)
    assert called == [True]


def test_waiting_for_a_receipt_may_time_out_without_ending_the_send(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.fail(PUBLISH, ConnectFailed("down"), times=100_000)
    future = make().send_async("t", b"x")
    with pytest.raises(TimeoutError):
        future.result(0.05)
    broker.heal()
    assert future.result(LIMIT_S).offset == 0


def test_a_key_without_the_right_to_see_the_topic_lets_the_broker_choose(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.fail(r"GET .*/topics/t$", Forbidden("no browse"), times=100)
    producer = make()
    producer.send("t", b"x", key="k")
    assert "queue" not in broker.seen(PUBLISH)[0].body["messages"][0]


def test_a_producer_goes_on_in_a_forked_process(
    broker: SimulatedBroker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = make()
    producer.send("t", b"parent")
    parent = producer._state
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    producer.send("t", b"child")
    assert sorted(bodies(broker)) == [b"child", b"parent"]
    assert producer._state is not parent
    monkeypatch.undo()


def _batch(count: int = 1, *, unknown: bool = False, tries: int = 1) -> Batch:
    batch = Batch(topic="t", queue=1, linger_s=0, timeout_s=1)
    for _ in range(count):
        batch.add({"body_bytes": b""}, 0)
    batch.unknown, batch.tries = unknown, tries
    return batch


NODE_DOWN = Unavailable("", code="node_unavailable")
READ_ONLY = Conflict("", code="queue_not_writable", status=409)


@pytest.mark.parametrize(
    ("batch", "error", "kind", "resend", "expected"),
    [
        (_batch(), NODE_DOWN, Kind.FREE, False, NextStep.MOVE),
        (_batch(unknown=True), NODE_DOWN, Kind.FREE, False, NextStep.REPEAT),
        (_batch(unknown=True), NODE_DOWN, Kind.FREE, True, NextStep.MOVE),
        (_batch(), NODE_DOWN, Kind.NAMED, False, NextStep.REPEAT),
        (_batch(), READ_ONLY, Kind.NAMED, False, NextStep.FAIL),
        (
            _batch(),
            Unavailable("", code="no_writable_queue"),
            Kind.FREE,
            False,
            NextStep.REPEAT,
        ),
        (_batch(), ConnectFailed(""), Kind.FREE, False, NextStep.REPEAT),
        (_batch(), AnswerLost(""), Kind.KEYED, False, NextStep.REPEAT),
        (_batch(2), InvalidRequest(""), Kind.KEYED, False, NextStep.SPLIT),
        (_batch(1), InvalidRequest(""), Kind.KEYED, False, NextStep.FAIL),
        (_batch(2, unknown=True), InvalidRequest(""), Kind.KEYED, False, NextStep.FAIL),
        (_batch(tries=1), ServerFailed(""), Kind.FREE, False, NextStep.REPEAT),
        (_batch(tries=3), ServerFailed(""), Kind.FREE, False, NextStep.FAIL),
        (_batch(), NotFound("", code="topic_not_found"), Kind.FREE, False, NextStep.FAIL),
    ],
)
def test_what_follows_from_a_failed_try(
    batch: Batch, error: CatmqError, kind: Kind, *, resend: bool, expected: NextStep
) -> None:
    count, tries, unknown = len(batch.messages), batch.tries, batch.unknown
    follows = after_failure(
        error,
        kind=kind,
        messages=count,
        tries=tries,
        unknown=unknown,
        resend_unknown=resend,
    )
    assert follows is expected


class Interrupting:
    """A transport in front of a SimulatedBroker that raises, once, what is planted for a
    method.
    """

    def __init__(self, broker: SimulatedBroker) -> None:
        self.broker = broker
        self.planted: dict[str, BaseException] = {}

    def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        error = self.planted.pop(method, None)
        if error is not None:
            raise error
        return self.broker.request(method, path, **more)


class Watched:
    """A transport that calls a function before each request."""

    def __init__(self, broker: SimulatedBroker, call: Callable[[], object]) -> None:
        self._broker, self._call = broker, call
        self.urls = ("http://a:8000", "http://b:8000")

    def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        self._call()
        return self._broker.request(method, path, **more)


def age_layout(producer: Producer, topic: str) -> None:
    state = producer._state
    assert state is not None
    state.layouts.cached(topic).loaded_at -= 3_600.0


def test_a_callback_may_send_to_the_same_queue(broker: SimulatedBroker, make: Make) -> None:
    producer = make(linger_ms=60_000)
    answered: list[Receipt] = []
    future = producer.send_async("t", b"1", key="k")
    future.add_done_callback(lambda f: answered.append(producer.send("t", b"2", key="k")))
    producer.send("t", b"now", key="k")
    assert broker.wait_until(lambda: len(bodies(broker)) == 3)
    assert [receipt.offset for receipt in answered] == [2]


@pytest.mark.parametrize("end", [Producer.flush, Producer.close])
def test_flush_and_close_return_after_the_callbacks_of_what_was_sent(
    broker: SimulatedBroker, make: Make, end: Callable[[Producer], None]
) -> None:
    producer = make(linger_ms=60_000)  # nothing has gone before its callback is there
    entered, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    called: list[int] = []

    def call(number: int) -> None:
        entered.set()
        assert go_on.wait(LIMIT_S)
        called.append(number)

    futures = [
        producer.send_async("t", b"%d" % number, queue=1 + number % 4)
        for number in range(8)
    ]
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: call(number))  # type: ignore[misc]

    def finish() -> None:
        end(producer)
        ended.set()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(finish)
        assert entered.wait(LIMIT_S)
        for future in futures:
            future.result(LIMIT_S)
        assert not ended.wait(0.05), "callbacks are at work"
        go_on.set()
        assert ended.wait(LIMIT_S)
    assert sorted(called) == list(range(8))


def test_flush_tells_that_a_callback_takes_too_long(make: Make) -> None:
    producer, go_on = make(linger_ms=60_000), threading.Event()
    producer.send_async("t", b"1").add_done_callback(lambda _: go_on.wait(LIMIT_S))
    with pytest.raises(TimeoutError, match="callbacks did not return"):
        producer.flush(0.2)
    go_on.set()
    producer.flush(LIMIT_S)


def test_a_callback_may_flush_although_there_is_only_one_sender(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(linger_ms=0, max_in_flight=1)
    flushed = threading.Event()

    def flush(_: object) -> None:
        other = producer.send_async("t", b"2", queue=2)
        producer.flush(LIMIT_S)
        if other.done():
            flushed.set()

    broker.fail(PUBLISH, ConnectFailed("down"), times=2)
    producer.send_async("t", b"1", queue=1).add_done_callback(flush)
    assert flushed.wait(LIMIT_S)


def test_ctrl_c_while_the_layout_is_looked_up_leaves_the_buffer_free(
    broker: SimulatedBroker,
) -> None:
    transport = Interrupting(broker)
    with Producer(transport=transport, retry_backoff_ms=1) as producer:
        producer.send("t", b"1", key="k")
        age_layout(producer, "t")
        # The age is looked at before a send, too; only the look-up after the refusal is to
        # be hit.
        routes = producer._state.layouts.cached("t")  # type: ignore[union-attr]
        routes.loaded_at += 3_600.0 - 1.0
        broker.fail(PUBLISH, NODE_DOWN)
        transport.planted["GET"] = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            producer.send("t", b"2", key="k")
        assert producer.send_async("t", b"3", key="k").result(LIMIT_S).offset == 1


def test_an_answer_with_too_few_results_is_an_unknown_outcome_and_frees_its_buffer(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(delivery_timeout_ms=300)
    publish = broker.topics.publish
    broker.topics.publish = lambda name, body: publish(name, body)[1:]  # type: ignore[method-assign]
    with pytest.raises(SendOutcomeUnknown, match="0 results for 1 messages"):
        producer.send("t", b"1", key="k")
    broker.topics.publish = publish  # type: ignore[method-assign]
    assert producer.send("t", b"2", key="k").offset == 1


def test_a_layout_that_cannot_be_read_leaves_the_known_one(
    broker: SimulatedBroker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = make()
    first = producer.send("t", b"1", key="k")
    age_layout(producer, "t")
    monkeypatch.setattr(type(broker.topics.find("t")), "view", lambda topic: {"name": "t"})
    assert producer.send("t", b"2", key="k").queue == first.queue
    with pytest.raises(AnswerLost, match="topic t cannot be read"):
        make().send("t", b"3")


@pytest.mark.parametrize("key", ["k", None])
def test_a_topic_made_anew_is_found_by_its_new_queues(
    broker: SimulatedBroker, make: Make, key: str
) -> None:
    producer = make(linger_ms=0)
    old = producer.send("t", b"1", key=key).queue
    broker.change(lambda: broker.create_topic("t", queues=2))
    futures = [producer.send_async("t", b"%d" % n, key=key) for n in (2, 3)]
    receipts = [future.result(LIMIT_S) for future in futures]
    assert old not in {receipt.queue for receipt in receipts}
    if key:
        assert bodies(broker) == [b"2", b"3"]


def test_a_layout_that_is_old_is_looked_up_before_the_next_send(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make()
    producer.send("t", b"1", key="k")
    broker.change(lambda: broker.create_topic("t", queues=2))
    age_layout(producer, "t")
    assert producer.send("t", b"2", key="k").offset == 0
    assert len(broker.seen(PUBLISH)) == 2


def _home(broker: SimulatedBroker, number: int) -> str:
    return next(str(n) for n in range(999) if slot_of(str(n)) % 4 == number)


def test_a_refused_keyed_batch_follows_its_slot_also_when_another_send_fetched_the_layout(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(retry_backoff_ms=50)
    key = _home(broker, 0)
    producer.send("t", b"0", key=key)
    topic = broker.topics.by_name["t"]
    broker.change(lambda: setattr(topic.queues[0], "state", "retired"))
    first = producer.send_async("t", b"1", key=key)
    assert broker.wait_until(lambda: len(broker.seen(PUBLISH)) > 2)

    def retire() -> None:
        topic.slots = [2 if queue == 1 else queue for queue in topic.slots]
        topic.version += 1

    broker.change(retire)
    age_layout(producer, "t")
    # Fetches the layout for all; the batch in its back-off must come along, before later
    # ones.
    second = producer.send_async("t", b"2", key=key)
    assert [future.result(LIMIT_S).queue for future in (first, second)] == [2, 2]
    assert [m.body for m in broker.messages("t") if m.key == key] == [b"0", b"1", b"2"]


def test_later_messages_of_a_key_wait_behind_one_that_may_be_stored_in_its_former_queue(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make()
    key = _home(broker, 0)
    producer.send("t", b"0", key=key)
    broker.fail(PUBLISH, AnswerLost("cut off"), times=10_000)
    first = producer.send_async("t", b"1", key=key)
    assert broker.wait_until(lambda: len(broker.seen(PUBLISH)) > 2)
    topic = broker.topics.by_name["t"]

    def move() -> None:
        topic.slots = [2 if queue == 1 else queue for queue in topic.slots]
        topic.version += 1

    broker.change(move)
    age_layout(producer, "t")
    second = producer.send_async("t", b"2", key=key)
    assert not second.done()
    broker.heal()
    assert [future.result(LIMIT_S).queue for future in (first, second)] == [1, 2]
    assert producer.send("t", b"3", key=key).queue == 2
    # None of them was asked of queue 2 before the first one had ended.
    bodies_asked = [
        wire.body_of(m) for s in broker.seen(PUBLISH) for m in s.body["messages"]
    ]
    assert bodies_asked[-3:] == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "\ud800"},
        {"tag": 5},
        {"tag": "\ud800"},
        {"trace_id": b"x"},
        {"headers": {"a": b"1"}},
        {"headers": {"a": "\ud800"}},
        {"headers": {5: "a"}},
        {"queue": "1"},
        {"queue": True},
        {"body": "\ud800"},
    ],
)
def test_a_message_that_cannot_be_written_is_refused_at_its_own_send(
    broker: SimulatedBroker, make: Make, wrong: dict[str, Any]
) -> None:
    producer = make(linger_ms=60_000)
    good = producer.send_async("t", b"good", queue=1)
    fields: dict[str, Any] = {"body": b"bad", **wrong}
    with pytest.raises(OptionError):
        producer.send_async("t", fields.pop("body"), **fields)
    producer.flush(LIMIT_S)
    assert good.result(LIMIT_S).offset == 0
    assert bodies(broker) == [b"good"]


def test_a_request_that_cannot_be_written_fails_definitely_and_only_for_its_message(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(linger_ms=60_000)
    futures = [producer.send_async("t", b"%d" % n, queue=1) for n in range(4)]
    (buffer,) = producer._process_state().accumulator._buffers.values()
    buffer.batches[0].messages[2]["tag"] = object()
    producer.flush(LIMIT_S)
    errors = [future.exception(LIMIT_S) for future in futures]
    assert [type(error) for error in errors] == [
        type(None),
        type(None),
        OptionError,
        type(None),
    ]
    assert bodies(broker) == [b"0", b"1", b"3"]


def test_send_batch_sends_nothing_when_a_later_message_is_made_wrong(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make()
    with pytest.raises(OptionError):
        producer.send_batch("t", [{"body": b"1"}, {"body": b"2", "key": 5}])
    producer.flush(LIMIT_S)
    assert bodies(broker) == []


def test_send_batch_tells_a_message_without_room_or_route_at_its_place(
    broker: SimulatedBroker, make: Make
) -> None:
    results = make().send_batch(
        "t", [NewMessage(b"1"), NewMessage(b"2", queue=99), NewMessage(b"3")]
    )
    assert [type(result) for result in results] == [Receipt, OptionError, Receipt]
    broker.fail(PUBLISH, ConnectFailed("down"), times=100_000)
    producer = make(buffer_messages=2, max_block_ms=1, delivery_timeout_ms=500)
    results = producer.send_batch("t", [NewMessage(b"%d" % n, queue=1) for n in range(4)])
    assert [type(result) for result in results[2:]] == [BufferFull, BufferFull]
    assert not any(isinstance(result, Receipt) for result in results)


def test_two_threads_of_a_forked_process_share_what_sends(
    broker: SimulatedBroker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = make()
    producer.send("t", b"parent")
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    together = threading.Barrier(8)

    def look(_: int) -> object:
        together.wait(LIMIT_S)
        return producer._process_state()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(id, pool.map(look, range(8))))) == 1
    monkeypatch.undo()


def test_a_batch_stored_in_part_is_repeated_and_stored_once(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.fail(r"GET .*/topics/t$", Forbidden("no browse"), times=100)
    broker.topics.down_nodes.add("a")
    future_keys = [_home(broker, number) for number in range(4)]
    producer = make(linger_ms=60_000)
    futures = [producer.send_async("t", b"x", key=key) for key in future_keys]
    threading.Thread(target=producer.flush, args=(LIMIT_S,)).start()
    assert broker.wait_until(lambda: len(broker.seen(PUBLISH)) > 2)
    assert {message.queue for message in broker.messages("t")} == {2, 4}
    broker.change(broker.topics.down_nodes.clear)
    assert [future.result(LIMIT_S).queue for future in futures] == [1, 2, 3, 4]
    assert len(bodies(broker)) == 4
    assert len(set(batch_ids(broker))) == 1
