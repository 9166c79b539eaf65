"""Consumption stopped by an operator: honoured at once by what is fetched, held, or waits
for a handler.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from catmq_client import Consumer, Message, NewMessage, Producer
from catmq_client.message import Source, make_row
from catmq_client.options import ConsumerOptions
from catmq_client.reading.clocks import lease_clock
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.state import GroupState
from tests.support.becoming import becomes, owns
from tests.support.handlers import working
from tests.support.held import HeldTransport
from tests.support.simulated import SimulatedBroker
from tests.support.waiting import until

LIMIT_S = 10.0
Make = Callable[..., Consumer]
Where = dict[str, Any]
# Queue 1 alone, the topic it belongs to, the whole group.
LEVELS: list[Where] = [{"queue": 1}, {"topic": "t"}, {}]


@pytest.fixture
def broker() -> SimulatedBroker:
    made = SimulatedBroker(session_timeout_ms=300_000)
    made.create_topic("t", queues=1)
    made.create_topic("u", queues=1)
    for topic in ("t", "u"):
        # Nothing here waits for the next regular heartbeat.
        made.subscribe("g", topic).heartbeat_interval_ms = 100_000
    return made


@pytest.fixture
def held(broker: SimulatedBroker) -> HeldTransport:
    return HeldTransport(broker)


@pytest.fixture
def make(broker: SimulatedBroker, held: HeldTransport) -> Iterator[Make]:
    made: list[Consumer] = []

    def consumer(**options: Any) -> Consumer:
        made.append(Consumer(transport=held, group="g", retry_backoff_ms=1, **options))
        return made[-1]

    yield consumer
    held.open_all()
    for one in made:
        one.close()


def send(broker: SimulatedBroker, topic: str, count: int) -> None:
    with Producer(transport=broker) as producer:
        producer.send_batch(
            topic, [NewMessage(b"%d" % n, key=str(n)) for n in range(count)]
        )


def take(consumer: Consumer, count: int) -> list[Message]:
    taken: list[Message] = []
    while len(taken) < count:
        got = consumer.poll(count - len(taken), timeout_s=LIMIT_S)
        assert got, f"only {len(taken)} of {count} messages came"
        taken += got
    return taken


def is_stopped(consumer: Consumer, queue: int = 1, *, stopped: bool = True) -> bool:
    return becomes(consumer, lambda: consumer._state.queues[queue].stopped is stopped)


@pytest.mark.parametrize("where", LEVELS)
def test_what_is_held_of_a_stopped_queue_is_not_given_out_until_it_is_started(
    broker: SimulatedBroker, make: Make, where: Where
) -> None:
    send(broker, "t", 10)
    consumer = make()
    assert [message.offset for message in take(consumer, 3)] == [0, 1, 2]
    broker.stop("g", **where)
    assert is_stopped(consumer)
    assert consumer.poll(timeout_s=0.05) == []
    assert (consumer.position(1), consumer._state.buffered) == (3, 0)
    consumer.commit()
    assert broker.committed("g")[1] == 3
    broker.start("g", **where)
    assert [message.offset for message in take(consumer, 7)] == [3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("where", LEVELS[:2])
def test_a_stopped_queue_keeps_no_other_from_being_read_or_waited_for(
    broker: SimulatedBroker, make: Make, where: Where
) -> None:
    send(broker, "t", 10)
    broker.stop("g", **where)
    consumer = make()
    assert consumer.poll(timeout_s=0.0) == []
    send(broker, "u", 3)
    assert {message.topic for message in take(consumer, 3)} == {"u"}

    def waits_long() -> bool:
        last = broker.seen("/pull$")[-1].body
        return last["wait_ms"] == 30_000 and [
            asked["queue"] for asked in last["queues"]
        ] == [2]

    assert broker.wait_until(waits_long)
    assert len(broker.seen("/pull$")) < 30
    broker.start("g", **where)
    assert [message.offset for message in take(consumer, 10)] == list(range(10))


def test_a_consumer_that_starts_in_a_stopped_group_waits_long_and_begins_at_once(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, "t", 2)
    broker.stop("g")
    consumer = make()
    assert consumer.poll(timeout_s=0.0) == []
    assert broker.wait_until(
        lambda: any(s.body["wait_ms"] == 30_000 for s in broker.seen("/pull$"))
    )
    broker.start("g")
    assert len(take(consumer, 2)) == 2


@pytest.mark.parametrize("where", LEVELS)
@pytest.mark.parametrize("order", ["key", "queue", "none"])
def test_handlers_at_work_finish_and_commit_and_none_begins_until_it_is_started(
    broker: SimulatedBroker, make: Make, where: Where, order: str
) -> None:
    send(broker, "t", 20)
    began: list[int] = []
    at_work, go_on = threading.Event(), threading.Event()
    consumer = make(auto_commit_interval_ms=1)

    def handler(message: Message) -> None:
        if message.topic == "t":
            began.append(message.offset)
            at_work.set()
            assert go_on.wait(LIMIT_S)
            if len(began) == 20:
                consumer.stop()

    thread = threading.Thread(target=lambda: consumer.run(handler, threads=1, order=order))
    thread.start()
    assert at_work.wait(LIMIT_S)
    # All others wait for the thread.
    assert becomes(consumer, lambda: consumer._state.queues[1].unfinished > 1)
    broker.stop("g", **where)
    assert is_stopped(consumer)
    go_on.set()
    assert broker.wait_until(lambda: broker.committed("g")[1] == 1)
    if where:
        # The thread is free for other queues, and those of the stopped one had the first
        # claim to it.
        send(broker, "u", 1)
        assert broker.wait_until(lambda: broker.committed("g")[2] == 1)
    assert began == [0]
    broker.start("g", **where)
    thread.join(LIMIT_S)
    assert began == list(range(20))
    assert broker.committed("g")[1] == 20


def test_a_handler_that_failed_is_not_called_again_while_its_queue_is_stopped(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, "t", 1)
    tries: list[int] = []
    failing, fail = threading.Event(), threading.Event()
    consumer = make(auto_commit_interval_ms=1, handler_attempts=3)

    def handler(message: Message) -> None:
        if message.topic == "u":
            return
        tries.append(message.offset)
        if len(tries) > 1:
            consumer.stop()
            return
        failing.set()
        assert fail.wait(LIMIT_S)
        raise ValueError("not yet")

    thread = threading.Thread(target=lambda: consumer.run(handler, threads=1))
    thread.start()
    assert failing.wait(LIMIT_S)
    broker.stop("g", queue=1)
    assert is_stopped(consumer)
    fail.set()
    send(broker, "u", 1)
    assert broker.wait_until(lambda: broker.committed("g")[2] == 1)
    assert len(tries) == 1
    broker.start("g", queue=1)
    thread.join(LIMIT_S)
    assert len(tries) == 2
    assert broker.committed("g")[1] == 1


def test_a_pull_that_tells_of_a_stop_before_the_heartbeat_is_believed_and_not_repeated(
    broker: SimulatedBroker, held: HeldTransport, make: Make
) -> None:
    consumer = make()
    assert consumer.poll(timeout_s=0.0) == []
    assert owns(consumer, 2)
    heartbeats = held.hold("/heartbeat$")
    broker.stop("g", queue=1)
    send(broker, "u", 1)
    assert is_stopped(consumer)
    pulls = len(broker.seen("/pull$"))
    for _ in range(3):
        take(consumer, 1)
        send(broker, "u", 1)
    asked = [pull.body["queues"] for pull in broker.seen("/pull$")[pulls + 1 :]]
    assert all(1 not in [one["queue"] for one in queues] for queues in asked)
    heartbeats.open()
    broker.start("g", queue=1)
    assert is_stopped(consumer, stopped=False)
    send(broker, "t", 1)
    assert "t" in {message.topic for message in take(consumer, 2)}


def test_a_stopped_queue_can_be_moved(broker: SimulatedBroker, make: Make) -> None:
    send(broker, "t", 10)
    send(broker, "u", 10)
    consumer = make(name="one")
    taken = take(consumer, 5)
    broker.stop("g")
    assert is_stopped(consumer) and is_stopped(consumer, 2)
    other = make(name="two")
    assert other.poll(timeout_s=0.0) == []
    consumer.poll(timeout_s=0.0)
    assert owns(other, 1)
    broker.start("g")
    while len(taken) < 20:
        taken += consumer.poll(timeout_s=0.02) + other.poll(timeout_s=0.02)
    assert len({message.message_id for message in taken}) == 20


def test_the_slots_of_a_queue_that_is_started_go_on_at_once() -> None:
    state = GroupState(ConsumerOptions())
    state.lease_until = lease_clock() + 60
    owned = OwnedQueue(topic="t", queue=1, epoch=1, stopped=True)
    view = {"offset": 0, "message_id": "1-0", "stored_at_ms": 0, "body": "x"}
    message = Message(Source("t", 1, 1), make_row(view))
    handled = threading.Event()
    dispatcher, workers = working(state, lambda message: handled.set(), order="queue")
    dispatcher.dispatch([(owned, message)])
    until(lambda: dispatcher._resting)
    with state.changed:
        state.set_stopped(owned, False)
    assert handled.wait(LIMIT_S)
    workers.drain(LIMIT_S)
