"""What a broker says of a send, in both forms, and batches that name their queue: one
request, no thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from catmq_client import NewMessage, Producer, Receipt
from catmq_client.errors import (
    AnswerLost,
    BufferFull,
    Closed,
    FieldError,
    InvalidRequest,
    MessageRefused,
    OptionError,
    SendOutcomeUnknown,
)
from catmq_client.options import ProducerOptions
from catmq_client.sending.accumulator import Accumulator, QueueBuffer
from catmq_client.sending.receipts import OVERHEAD_BYTES, Batch, Outcome, RunFuture
from catmq_client.sending.routing import Layout, Routes, slot_of
from catmq_client.sending.send_request import errors_by_index, send
from tests.support.canned import Canned
from tests.support.simulated import SimulatedBroker

LINE = "POST topics/t/messages"
PUBLISH = r"POST .*/messages"
LIMIT_S = 10.0
REFUSAL = {"error": {"code": "node_unavailable", "detail": "away", "retriable": True}}
FINAL = {"error": {"code": "queue_not_writable", "detail": "closed"}}
LATER = {"message_id": "d-1", "due_at_ms": 5}


def sent(answer: Mapping[str, Any], count: int) -> list[Outcome]:
    """The outcomes of a send of so many messages."""
    messages = [{"body_bytes": b"%d" % index} for index in range(count)]
    transport = Canned({LINE: answer})
    outcomes = send(transport, topic="t", messages=messages, batch_id="b", timeout_s=1.0)
    body = {"messages": messages, "batch_id": "b", "receipts": "runs"}
    assert transport.requests == [(LINE, body, None)]
    return outcomes


def flat(outcome: Outcome) -> tuple[Any, ...]:
    """An outcome as something that can be compared."""
    if isinstance(outcome, Receipt):
        return tuple(outcome)
    assert type(outcome) is MessageRefused
    return outcome.code, outcome.detail, outcome.retriable


FORMS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "side by side": (
        [{"count": 3, "queue": 7, "offset": 5}],
        [
            {"queue": 7, "offset": offset, "message_id": f"7-{offset}"}
            for offset in (5, 6, 7)
        ],
    ),
    "from zero": (
        [{"count": 1, "queue": 7, "offset": 0}],
        [{"queue": 7, "offset": 0, "message_id": "7-0"}],
    ),
    "two queues, in turns": (
        [
            {"count": 1, "queue": queue, "offset": offset}
            for queue, offset in ((1, 4), (2, 9), (1, 5), (2, 10))
        ],
        [
            {"queue": queue, "offset": offset, "message_id": f"{queue}-{offset}"}
            for queue, offset in ((1, 4), (2, 9), (1, 5), (2, 10))
        ],
    ),
    "delayed, and between": (
        [
            {"count": 1, "result": LATER},
            {"count": 1, "queue": 1, "offset": 2},
            {"count": 1, "result": LATER},
        ],
        [LATER, {"queue": 1, "offset": 2, "message_id": "1-2"}, LATER],
    ),
    "refused in part": (
        [
            {"count": 2, "result": REFUSAL},
            {"count": 1, "queue": 1, "offset": 2},
            {"count": 1, "result": FINAL},
        ],
        [REFUSAL, REFUSAL, {"queue": 1, "offset": 2, "message_id": "1-2"}, FINAL],
    ),
    "nothing": ([], []),
}


@pytest.mark.parametrize("name", FORMS)
def test_runs_say_the_same_as_results(name: str) -> None:
    runs, results = FORMS[name]
    told = [*map(flat, sent({"runs": runs}, len(results)))]
    assert told == [*map(flat, sent({"results": results}, len(results)))]
    assert len(told) == len(results)


def test_a_receipt_and_a_refusal_carry_what_was_told() -> None:
    outcomes = sent(
        {"runs": [{"count": 2, "queue": 3, "offset": 8}, {"count": 2, "result": REFUSAL}]},
        4,
    )
    assert outcomes[:2] == [Receipt("t", 3, 8, "3-8"), Receipt("t", 3, 9, "3-9")]
    assert [flat(outcome) for outcome in outcomes[2:]] == [
        ("node_unavailable", "away", True)
    ] * 2
    assert outcomes[2] is not outcomes[3]  # each may be raised by itself
    assert sent({"results": [LATER]}, 1) == [Receipt("t", None, None, "d-1", 5)]
    (final,) = sent({"results": [FINAL]}, 1)
    assert flat(final) == ("queue_not_writable", "closed", False)


WRONG: dict[str, dict[str, Any]] = {
    "too few runs": {"runs": [{"count": 1, "queue": 1, "offset": 0}]},
    "too many runs": {"runs": [{"count": 3, "queue": 1, "offset": 0}]},
    "no runs": {"runs": []},
    "too few results": {"results": [LATER]},
    "too many results": {"results": [LATER] * 3},
    "neither": {"other": 1},
    "nothing": {},
    "a run of nothing": {"runs": [{"count": 2}]},
    "no count": {"runs": [{"queue": 1, "offset": 0}]},
    "no list": {"runs": 2},
    "no id": {"results": [{"queue": 1, "offset": 0}] * 2},
}


class Telling:
    """A SimulatedBroker that stores a batch and tells something else of it."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self.broker = broker
        self.answer: dict[str, Any] | None = None

    def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """See Transport."""
        answer = self.broker.request(method, path, **more)
        return answer if method != "POST" or self.answer is None else self.answer


@pytest.fixture
def broker() -> SimulatedBroker:
    made = SimulatedBroker()
    made.create_topic("t", queues=4)
    return made


@pytest.fixture
def make(broker: SimulatedBroker) -> Iterator[Callable[..., Producer]]:
    made: list[Producer] = []

    def producer(transport: Any = None, **options: Any) -> Producer:
        options = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 20, **options}
        made.append(Producer(transport=transport or broker, **options))
        return made[-1]

    yield producer
    broker.heal()
    for one in made:
        one.close(LIMIT_S)


Make = Callable[..., Producer]
TWO = [NewMessage(b"1", queue=1), NewMessage(b"2", queue=1)]


@pytest.mark.parametrize("name", WRONG)
def test_an_answer_that_does_not_tell_of_all_leaves_the_outcome_unknown_and_the_buffer_free(
    broker: SimulatedBroker, make: Make, name: str
) -> None:
    transport = Telling(broker)
    producer = make(transport, delivery_timeout_ms=300)
    transport.answer = WRONG[name]
    assert [type(one) for one in producer.send_batch("t", TWO)] == [SendOutcomeUnknown] * 2
    transport.answer = None
    assert [
        one.offset for one in producer.send_batch("t", TWO) if isinstance(one, Receipt)
    ] == [2, 3]


def test_a_batch_whose_answer_has_runs_gets_its_receipts(
    broker: SimulatedBroker, make: Make
) -> None:
    transport = Telling(broker)
    transport.answer = {
        "runs": [{"count": 1, "queue": 1, "offset": 0}, {"count": 1, "result": FINAL}]
    }
    stored, refused = make(transport).send_batch("t", TWO)
    assert stored == Receipt("t", 1, 0, "1-0")
    assert flat(refused) == flat(
        MessageRefused("closed", code="queue_not_writable", retriable=False)
    )


def test_a_run_that_may_be_repeated_goes_again_under_the_same_id(
    broker: SimulatedBroker, make: Make
) -> None:
    transport = Telling(broker)
    transport.answer = {"runs": [{"count": 2, "result": REFUSAL}]}
    producer = make(transport)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(producer.send_batch, "t", TWO)
        assert broker.wait_until(lambda: len(broker.seen(PUBLISH)) > 2)
        transport.answer = None
        assert sending.result(LIMIT_S) == [
            Receipt("t", 1, 0, "1-0"),
            Receipt("t", 1, 1, "1-1"),
        ]
    assert len({seen.body["batch_id"] for seen in broker.seen(PUBLISH)}) == 1


def requests(broker: SimulatedBroker) -> list[tuple[set[int], int]]:
    """Which queues each send named, and how many messages it had."""
    asked = [seen.body["messages"] for seen in broker.seen(PUBLISH)]
    return [
        ({message["queue"] for message in messages}, len(messages)) for messages in asked
    ]


def senders() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "catmq-sender"}


def batch(count: int, *, queue: int | None = 1, size: int = 1) -> list[NewMessage]:
    return [NewMessage(b"%0*d" % (size, index), queue=queue) for index in range(count)]


def told_in_order(outcomes: list[Any]) -> list[int]:
    return [outcome.offset for outcome in outcomes if isinstance(outcome, Receipt)]


def test_a_batch_to_one_queue_is_one_request_of_the_callers_thread(
    broker: SimulatedBroker, make: Make
) -> None:
    before = senders()
    producer = make(linger_ms=60_000)
    for first in (0, 20, 40):
        assert told_in_order(producer.send_batch("t", batch(20))) == [
            *range(first, first + 20)
        ]
    assert requests(broker) == [({1}, 20)] * 3
    assert senders() <= before  # those of other tests end meanwhile


def test_a_batch_to_one_queue_wakes_nobody(broker: SimulatedBroker, make: Make) -> None:
    producer = make(linger_ms=1)
    # leaves a sender that is idle
    assert producer.send_async("t", b"x", queue=2).result(LIMIT_S).queue == 2
    assert producer._state is not None
    buffer = producer._state.accumulator
    assert broker.wait_until(lambda: buffer.idle_senders == 1)
    woken: list[str] = []
    work = buffer._batch_ready
    notify, notify_all = work.notify, work.notify_all
    work.notify = lambda n=1: (woken.append("one"), notify(n))  # type: ignore[assignment,misc]
    work.notify_all = lambda: (woken.append("all"), notify_all())  # type: ignore[assignment,misc]
    for _ in range(3):
        producer.send_batch("t", batch(20))
    assert woken == []
    producer.send_batch("t", [*batch(2), *batch(2, queue=2)])
    assert woken


class Meeting:
    """A SimulatedBroker that answers sends only when so many are under way at once."""

    def __init__(self, broker: SimulatedBroker, parties: int) -> None:
        self.broker = broker
        self.together = threading.Barrier(parties)

    def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """See Transport."""
        if method == "POST":
            self.together.wait(LIMIT_S)
        return self.broker.request(method, path, **more)


def test_a_batch_to_several_queues_goes_to_all_of_them_at_once(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(Meeting(broker, 4), linger_ms=60_000)
    mixed = [NewMessage(b"%d" % index, queue=1 + index % 4) for index in range(40)]
    for first in (0, 10):
        outcomes = producer.send_batch("t", mixed)
        assert [
            (one.queue, one.offset) for one in outcomes if isinstance(one, Receipt)
        ] == [(1 + index % 4, first + index // 4) for index in range(40)]
    assert sorted(map(str, requests(broker))) == sorted(
        str(({queue}, 10)) for queue in (1, 2, 3, 4) * 2
    )


def test_a_batch_goes_behind_what_lingers_for_its_queue(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(linger_ms=60_000)
    producer.send_batch("t", batch(1))
    earlier = producer.send_async("t", b"earlier", queue=1)
    assert told_in_order(producer.send_batch("t", batch(3))) == [2, 3, 4]
    assert earlier.result(LIMIT_S).offset == 1


def test_threads_that_send_batches_to_one_queue_all_get_their_receipts(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(linger_ms=60_000)
    with ThreadPoolExecutor(8) as pool:
        sending = [pool.submit(producer.send_batch, "t", batch(5)) for _ in range(80)]
        offsets = [
            offset for one in sending for offset in told_in_order(one.result(LIMIT_S))
        ]
    assert sorted(offsets) == [*range(400)]


def test_a_buffer_that_waits_is_not_forgotten_by_a_sender_that_is_idle(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(linger_ms=1)
    producer.send_async("t", b"x", queue=1).result(LIMIT_S)
    assert producer._state is not None
    buffer = producer._state.accumulator
    assert broker.wait_until(lambda: buffer.idle_senders == 1)
    for queue_buffer in buffer._buffers.values():
        queue_buffer.not_before = (
            time.monotonic() + 0.2
        )  # as one whose messages went elsewhere after a failed try
    with ThreadPoolExecutor(1) as pool:
        assert told_in_order(
            pool.submit(producer.send_batch, "t", batch(2)).result(LIMIT_S)
        ) == [1, 2]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"batch_messages": 4}, [4, 4, 2]),
        ({"batch_bytes": 4 * (OVERHEAD_BYTES + 100)}, [4, 4, 2]),
        ({"buffer_messages": 4}, None),
        ({"buffer_bytes": 4 * (OVERHEAD_BYTES + 100)}, None),
    ],
)
def test_a_batch_holds_the_limits_of_its_producer(
    broker: SimulatedBroker, make: Make, options: dict[str, int], expected: list[int] | None
) -> None:
    producer = make(**options, linger_ms=60_000, max_block_ms=5_000)
    producer.send("t", b"x", queue=1)  # the buffer is known
    assert told_in_order(producer.send_batch("t", batch(10, size=100))) == [*range(1, 11)]
    sizes = [count for _, count in requests(broker)[1:]]
    assert sum(sizes) == 10
    assert max(sizes) <= 4
    assert sizes == (expected or sizes)


def known_buffer(**options: int) -> tuple[Accumulator, Routes]:
    """An accumulator with a buffer for queue 1, and the routes of its topic."""
    layout = Layout("t", slots=(1,) * 1024, nodes={1: "a"}, writable=(1,))
    accumulator, routes = Accumulator(ProducerOptions(**options)), Routes(layout)
    _, queue_buffer = accumulator.append(
        routes, {"body_bytes": b"", "queue": 1}, urgent=True
    )
    taken = accumulator.take(only=queue_buffer)
    assert taken is not None
    accumulator.finish_batch(*taken)
    return accumulator, routes


def raw(count: int, size: int = 1, queue: int = 1) -> list[dict[str, Any]]:
    return [{"body_bytes": b"x" * size, "queue": queue} for _ in range(count)]


@pytest.mark.parametrize(
    ("options", "fitting"),
    [({"buffer_messages": 4}, 4), ({"buffer_bytes": 4 * (OVERHEAD_BYTES + 1)}, 4)],
)
def test_a_batch_that_does_not_fit_the_buffer_is_taken_in_only_as_far_as_it_does(
    options: dict[str, int], fitting: int
) -> None:
    accumulator, routes = known_buffer(**options)
    appended = accumulator.append_all(routes, raw(fitting), block_s=0.0)
    assert [[*run.indexes] for run in appended.runs] == [[*range(fitting)]]
    assert (appended.errors, appended.room_until) == ({}, fitting)
    refused = accumulator.append_all(routes, raw(2), block_s=0.0)
    assert [type(one) for one in refused.await_outcomes()] == [BufferFull] * 2
    assert (refused.runs, refused.room_until) == ([], 0)

    accumulator, routes = known_buffer(**options)
    appended = accumulator.append_all(routes, raw(fitting + 2), block_s=0.0)
    assert [[*run.indexes] for run in appended.runs] == [[*range(fitting)]]
    assert {i: type(error) for i, error in appended.errors.items()} == {
        fitting: BufferFull,
        fitting + 1: BufferFull,
    }
    assert appended.room_until == accumulator._messages == fitting


def test_what_a_batch_took_of_the_buffer_is_given_back() -> None:
    accumulator, routes = known_buffer()
    (run,) = accumulator.append_all(routes, raw(5), block_s=0.0).runs
    assert (accumulator._messages, accumulator._bytes) == (5, 5 * (OVERHEAD_BYTES + 1))
    taken = accumulator.take(only=run.buffer)
    assert taken is not None and len(taken[1].messages) == 5
    accumulator.finish_batch(*taken)
    assert (accumulator._messages, accumulator._bytes) == (0, 0)


def test_a_closed_buffer_takes_no_batch() -> None:
    accumulator, routes = known_buffer()
    accumulator.close()
    appended = accumulator.append_all(routes, raw(2), block_s=0.0)
    assert [type(one) for one in appended.await_outcomes()] == [Closed] * 2
    assert appended.runs == []


def test_a_batch_for_a_queue_that_is_none_of_the_topic_is_refused(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make()
    outcomes = producer.send_batch("t", batch(2, queue=99))
    assert [type(one) for one in outcomes] == [OptionError] * 2
    assert "queue 99 is not one of t's queues" in str(outcomes[0])

    accumulator, routes = known_buffer()
    accumulator.apply_layout(
        routes, Layout("t", slots=(2,) * 1024, nodes={2: "a"}, writable=(2,))
    )
    # its buffer is still there
    appended = accumulator.append_all(routes, raw(2), block_s=0.0)
    assert [type(one) for one in appended.await_outcomes()] == [OptionError] * 2
    assert broker.seen(PUBLISH) == []


def test_a_closed_producer_sends_no_batch(broker: SimulatedBroker, make: Make) -> None:
    producer = make()
    producer.send_batch("t", batch(2))
    producer.close()
    with pytest.raises(Closed):
        producer.send_batch("t", batch(2))


def test_a_batch_whose_answer_was_lost_is_stored_once(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make()
    producer.send_batch("t", batch(2))
    broker.fail(PUBLISH, AnswerLost("cut"), after=True, times=2)
    assert told_in_order(producer.send_batch("t", batch(3))) == [2, 3, 4]
    assert len(broker.messages("t")) == 5


def test_a_broker_without_runs_is_asked_again_without_them() -> None:
    asked: list[Any] = []

    class Old:
        urls = ("old",)

        def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            asked.append(more["body"])
            if "receipts" in more["body"]:
                field = FieldError("receipts", "is not a field of this request")
                raise InvalidRequest(
                    "receipts: is not a field of this request", errors=[field]
                )
            return {"results": [{"queue": 7, "offset": 4, "message_id": "7-4"}]}

    outcomes = send(
        Old(), topic="t", messages=[{"body_bytes": b"x"}], batch_id="b", timeout_s=1.0
    )
    assert outcomes == [Receipt("t", 7, 4, "7-4")]
    assert [one.get("receipts") for one in asked] == ["runs", None]
    assert all(one["batch_id"] == "b" for one in asked)


def test_a_batch_without_keys_is_one_request_to_the_next_queue(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(linger_ms=60_000)
    for _ in range(8):
        outcomes = producer.send_batch("t", [b"%d" % n for n in range(20)])
        offsets = told_in_order(outcomes)
        assert offsets == [*range(offsets[0], offsets[0] + 20)]
    asked = requests(broker)
    assert [count for _, count in asked] == [20] * 8
    assert {queue for queues, _ in asked for queue in queues} == {1, 2, 3, 4}
    assert all(a != b for (a, _), (b, _) in pairwise(asked))


def test_a_batch_without_keys_that_is_too_large_goes_to_several_queues(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(batch_messages=10, linger_ms=60_000)
    outcomes = producer.send_batch("t", [b"%d" % n for n in range(35)])
    assert [type(one) for one in outcomes] == [Receipt] * 35
    asked = requests(broker)
    assert sorted(count for _, count in asked) == [5, 10, 10, 10]
    assert {queue for queues, _ in asked for queue in queues} == {1, 2, 3, 4}


@pytest.mark.parametrize("keys", [1, 3, 60])
def test_a_batch_with_keys_is_one_request_to_each_queue(
    broker: SimulatedBroker, make: Make, keys: int
) -> None:
    producer = make(linger_ms=60_000)
    messages = [NewMessage(b"%d" % n, key=f"k{n % keys}") for n in range(60)]
    outcomes = producer.send_batch("t", messages)
    homes = [1 + slot_of(f"k{n % keys}") % 4 for n in range(60)]
    assert [one.queue for one in outcomes if isinstance(one, Receipt)] == homes
    assert len(requests(broker)) == len({*homes})
    for queue in {*homes}:
        # In the order of the call, also between different keys.
        sent = [n for n in range(60) if homes[n] == queue]
        stored = [m for m in broker.messages("t") if m.queue == queue]
        assert [int(m.body) for m in sorted(stored, key=lambda m: m.offset)] == sent
        assert told_in_order([outcomes[n] for n in sent]) == [*range(len(sent))]


def test_messages_of_every_kind_in_one_batch_get_their_own_outcomes(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(linger_ms=60_000)
    messages: list[Any] = [
        b"free",
        NewMessage(b"keyed", key="k"),
        NewMessage(b"named", queue=2),
        NewMessage(b"nowhere", queue=99),
        {"body": b"preferred", "queue": 3, "queue_strict": False},
        NewMessage(b"named and keyed", key="k", queue=4),
        {"body": b"headers", "headers": {"a": "b"}, "key": "k"},
        b"free, too",
    ]
    outcomes = producer.send_batch("t", messages)
    assert [type(one) for one in outcomes] == [Receipt] * 3 + [OptionError] + [Receipt] * 4
    stored = {(m.queue, m.offset): m.body for m in broker.messages("t")}
    for message, outcome in zip(messages, outcomes, strict=True):
        if isinstance(outcome, Receipt):
            sent = NewMessage(message) if isinstance(message, bytes) else message
            body = sent["body"] if isinstance(sent, dict) else sent.body
            assert stored[outcome.queue, outcome.offset] == body
    queues = [one.queue for one in outcomes if isinstance(one, Receipt)]
    home = 1 + slot_of("k") % 4
    assert queues[1:6] == [home, 2, 3, 4, home]
    assert queues[0] == queues[6]


def test_a_wrong_message_of_a_batch_does_not_fail_a_future_in_the_same_request(
    broker: SimulatedBroker, make: Make
) -> None:
    producer = make(linger_ms=60_000, batch_bytes=4 * 1024 * 1024)
    called: list[Outcome] = []
    has_run = threading.Event()
    producer.send_batch("t", batch(1))
    earlier = producer.send_async("t", b"earlier", queue=1)
    earlier.add_done_callback(lambda future: called.append(future.receipt_or_error()))
    earlier.add_done_callback(lambda _: has_run.set())
    big = NewMessage(b"x" * (1024 * 1024 + 1), queue=1)
    outcomes = producer.send_batch("t", [*batch(2), big, *batch(2)])
    assert [type(one) for one in outcomes] == [Receipt] * 2 + [InvalidRequest] + [
        Receipt
    ] * 2
    assert told_in_order(outcomes) == [2, 3, 4, 5]
    assert has_run.wait(LIMIT_S)
    assert called == [Receipt("t", 1, 1, "1-1")]
    assert producer._state is not None
    assert (producer._state.accumulator._messages, producer._state.accumulator._bytes) == (
        0,
        0,
    )


def two_runs() -> tuple[Accumulator, QueueBuffer, list[RunFuture], Batch]:
    """A batch in flight with the messages of two calls, of two messages each."""
    accumulator, routes = known_buffer()
    runs = [accumulator.append_all(routes, raw(2), block_s=0.0).runs[0] for _ in range(2)]
    taken = accumulator.take(only=runs[0].buffer)
    assert taken is not None
    assert [len(batch.messages) for batch in (taken[1],)] == [4]
    return accumulator, taken[0], [run.future for run in runs], taken[1]


def receipts(count: int) -> list[Outcome]:
    return [Receipt("t", 1, n, f"1-{n}") for n in range(count)]


def test_calls_that_share_a_batch_get_their_own_receipts() -> None:
    accumulator, buffer, (first, second), batch = two_runs()
    assert not first.done()
    with pytest.raises(TimeoutError):
        first.await_outcomes(0.0)
    batch.set_outcomes(receipts(4))
    accumulator.finish_batch(buffer, batch)
    assert [*first.await_outcomes(), *second.await_outcomes()] == receipts(4)


def test_a_call_whose_batch_is_divided_waits_for_its_last_message() -> None:
    accumulator, buffer, (first, second), batch = two_runs()
    with ThreadPoolExecutor(1) as pool:
        # As a flush that began before the batch was divided.
        pending = accumulator.make_all_ready()
        assert {*pending} == {first, second}
        waiting = pool.submit(first.await_outcomes, LIMIT_S)
        parts = [batch.split_off([0]), batch.split_off([1, 2, 3])]
        batch.wake_waiters()
        accumulator.put_back(buffer, parts, delay_s=0.0)
        stored = iter(receipts(4))
        for _ in parts:
            assert not first.done() and not second.done() and not waiting.done()
            taken = accumulator.take(only=buffer)
            assert taken is not None
            taken[1].set_outcomes([next(stored) for _ in taken[1].messages])
            accumulator.finish_batch(*taken)
        assert [*waiting.result(LIMIT_S), *second.await_outcomes()] == receipts(4)
        assert accumulator.await_callbacks(pending, 0.0)


@pytest.mark.parametrize("tries", [0, 1])
def test_a_call_that_is_interrupted_leaves_the_messages_of_the_other_call(
    tries: int,
) -> None:
    accumulator, buffer, (first, second), batch = two_runs()
    batch.tries = tries
    own_error = SendOutcomeUnknown("interrupted")
    accumulator.abandon(buffer, {first}, own_error)
    taken = accumulator.take(only=buffer)
    assert taken is not None
    # A batch that was tried may be stored, so all of it is repeated, under its id.
    assert (len(taken[1].messages), taken[1].batch_id == batch.batch_id) == (
        (2, False) if tries == 0 else (4, True)
    )
    assert (first.done(), second.done()) == (tries == 0, False)
    taken[1].set_outcomes(receipts(len(taken[1].messages)))
    accumulator.finish_batch(*taken)
    if tries == 0:
        assert first.await_outcomes() == [own_error, own_error]
        assert second.await_outcomes() == receipts(2)
    else:
        assert [*first.await_outcomes(), *second.await_outcomes()] == receipts(4)
    assert (accumulator._messages, accumulator._bytes) == (0, 0)


def test_a_batch_that_an_interrupt_left_half_divided_ends_for_everybody() -> None:
    accumulator, buffer, (first, second), batch = two_runs()
    # As if the thread was interrupted in Batch.divide_runs(), before its last line.
    futures = first.divide()
    batch.fail(SendOutcomeUnknown("interrupted"))
    accumulator.finish_batch(buffer, batch)
    assert all(future.done() for future in futures)
    assert first.done() and second.done()
    outcomes = [*first.await_outcomes(LIMIT_S), *second.await_outcomes(LIMIT_S)]
    assert [type(outcome) for outcome in outcomes] == [SendOutcomeUnknown] * 4


def test_an_error_names_messages_by_their_place() -> None:
    errors = [
        FieldError("messages[1].key", "too long"),
        FieldError("messages[3]", "-"),
        FieldError("topic", "-"),
    ]
    assert errors_by_index(InvalidRequest("", errors=errors), 3) == {1: "too long"}
