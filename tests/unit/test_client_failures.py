"""Messages that fail: handed over and stored before they count as done, or retried in
place, or dead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from catmq_client import Consumer, Message, NewMessage, Producer
from catmq_client.errors import AnswerLost, HandlerFailed, NotBuilt, Unavailable
from tests.support.becoming import becomes
from tests.support.consumers import Make, making
from tests.support.simulated import SimulatedBroker
from tests.support.waiting import until

LIMIT_S = 10.0
FAILURES = "/failures$"


@pytest.fixture
def broker() -> SimulatedBroker:
    made = SimulatedBroker()
    made.create_topic("t", queues=1)
    made.subscribe("g", "t")
    return made


@pytest.fixture
def make(broker: SimulatedBroker) -> Iterator[Make]:
    with making(broker) as made:
        yield made


def send(broker: SimulatedBroker, count: int, *, key: str | None = "k") -> None:
    with Producer(transport=broker) as producer:
        producer.send_batch(
            "t", [NewMessage(b"%d" % n, key=key or str(n)) for n in range(count)]
        )


class Running:
    """A consumer in run(), in a thread of its own; what its handler got is in `got`."""

    def __init__(
        self, consumer: Consumer, fails: Callable[[Message], bool], **options: Any
    ) -> None:
        self.consumer = consumer
        self.got: list[Message] = []
        self.raised: list[BaseException] = []
        self._fails = fails
        self._thread = threading.Thread(target=self._run, kwargs=options)
        self._thread.start()

    def bodies(self) -> list[int]:
        return [int(message.body) for message in self.got]

    def stop(self) -> None:
        self.consumer.stop()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def _run(self, **options: Any) -> None:
        try:
            self.consumer.run(self._handle, **options)
        except HandlerFailed as error:
            self.raised.append(error)

    def _handle(self, message: Message) -> None:
        self.got.append(message)
        if self._fails(message):
            raise ValueError("bad")


def test_a_message_whose_handler_raises_comes_again_when_its_time_has_come(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 3)
    running = Running(
        make(auto_commit_interval_ms=1), lambda m: m.body == b"1" and m.attempt == 0
    )
    assert broker.wait_until(lambda: sum(broker.committed("g").values()) == 3)
    assert running.bodies() == [0, 1, 2], "the others of its key did not wait"
    (waiting,) = broker.waiting("g")
    assert (waiting.attempt, waiting.error) == (1, "ValueError: bad")
    broker.advance(10)
    until(lambda: len(running.got) == 4)
    again = running.got[-1]
    assert (again.topic, again.text, again.key, again.attempt) == ("t", "1", "k", 1)
    assert again.origin is not None and (again.origin.topic, again.origin.offset) == (
        "t",
        1,
    )
    assert again.origin.error == "ValueError: bad" and again.origin.first_failed_at_ms
    running.stop()
    assert broker.committed("g")[again.queue] == 1


def test_after_its_last_retry_a_message_is_dead(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.configure("g", "t", retries=2, retry_delays_s=(1,))
    send(broker, 1)
    running = Running(make(), lambda m: True)
    for tries in (1, 2):
        until(lambda: len(running.got) == tries and broker.waiting("g"))  # noqa: B023 - called at once
        broker.advance(1)
    until(lambda: broker.dead("g"))
    running.stop()
    assert [message.attempt for message in running.got] == [0, 1, 2]
    assert broker.dead("g")[0].attempt == 3 and not broker.waiting("g")


def test_no_commit_passes_a_message_before_its_copy_is_stored(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.fail(FAILURES, Unavailable("later", status=503), times=1_000)
    send(broker, 5, key=None)
    running = Running(make(auto_commit_interval_ms=1), lambda m: m.body == b"2")
    until(lambda: len(running.got) == 5)
    assert broker.wait_until(lambda: len(broker.seen(FAILURES)) > 3)
    assert broker.wait_until(lambda: sum(broker.committed("g").values()) == 2)
    told = {str(seen.body["messages"]) for seen in broker.seen(FAILURES)}
    assert len(told) == 1, "a repeat says the same"
    broker.heal()
    assert broker.wait_until(lambda: sum(broker.committed("g").values()) == 5)
    running.stop()


def test_a_lost_answer_stores_no_second_copy(broker: SimulatedBroker, make: Make) -> None:
    broker.fail(FAILURES, AnswerLost("gone"), after=True)
    send(broker, 1)
    running = Running(make(auto_commit_interval_ms=1), lambda m: True)
    assert broker.wait_until(lambda: sum(broker.committed("g").values()) == 1)
    running.stop()
    assert len(broker.waiting("g")) == 1 and len(broker.seen(FAILURES)) == 2


def test_what_one_queue_cannot_store_holds_up_no_other(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.create_topic("two", queues=2, nodes=["a", "b"])
    with Producer(transport=broker) as producer:
        first, second = (queue.id for queue in broker.topics.find("two").queues)
        producer.send_batch(
            "two", [NewMessage(b"0", queue=first), NewMessage(b"1", queue=second)]
        )
    broker.subscribe("g", "two")
    broker.topics.down_nodes.add("a")
    running = Running(make(topics=["two"], auto_commit_interval_ms=1), lambda m: True)
    assert broker.wait_until(lambda: broker.committed("g").get(second) == 1)
    assert broker.committed("g")[first] == 0
    broker.change(broker.topics.down_nodes.clear)
    assert broker.wait_until(lambda: broker.committed("g")[first] == 1)
    running.stop()


def test_a_poll_may_fail_messages_and_commit_stores_them_first(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 3)
    consumer = make(enable_auto_commit=False)
    messages: list[Message] = []
    while len(messages) < 3:
        messages += consumer.poll(timeout_s=LIMIT_S)
    consumer.fail(messages[1], KeyError("x"))
    consumer.fail(messages[1], "again")
    consumer.commit()
    assert sum(broker.committed("g").values()) == 3
    assert [(one.message.body, one.error) for one in broker.waiting("g")] == [
        (b"1", "KeyError: 'x'")
    ]


def test_a_poll_passes_no_failed_message_before_its_copy_is_stored(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.fail(FAILURES, Unavailable("later", status=503), times=1_000)
    send(broker, 3, key=None)
    consumer = make(auto_commit_interval_ms=1)
    messages: list[Message] = []
    while len(messages) < 3:
        messages += consumer.poll(timeout_s=LIMIT_S)
    consumer.fail(messages[1], "bad")
    consumer.poll(timeout_s=0.0)
    assert broker.wait_until(lambda: len(broker.seen(FAILURES)) > 3)
    assert sum(broker.committed("g").values()) == 1
    broker.heal()
    assert broker.wait_until(lambda: sum(broker.committed("g").values()) == 3)


def test_an_explicit_commit_above_a_failure_that_is_not_stored_is_refused(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.fail(FAILURES, Unavailable("later", status=503), times=1_000)
    send(broker, 2)
    consumer = make(enable_auto_commit=False)
    message = consumer.poll(1, timeout_s=LIMIT_S)[0]
    consumer.fail(message, "bad")
    with pytest.raises(Unavailable, match="not stored for its retry yet"):
        consumer.commit({message.queue: 1})


def test_a_message_of_a_queue_that_went_to_another_is_not_reported(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 1)
    consumer = make()
    message = consumer.poll(timeout_s=LIMIT_S)[0]
    broker.expire("g", consumer.name)
    with consumer._state.changed:
        consumer._state.want_heartbeat()
    assert becomes(
        consumer,
        lambda: 1 not in consumer._state.queues or consumer._state.queues[1].epoch > 1,
    )
    consumer.fail(message, "bad")
    consumer.poll(timeout_s=LIMIT_S)
    assert broker.seen(FAILURES) == []


def test_where_failures_cannot_be_taken_at_all_the_queue_stands_still(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.fail(FAILURES, NotBuilt("old broker", status=501))
    send(broker, 2)
    running = Running(make(), lambda m: True, threads=1)
    until(lambda: running.raised)
    running.stop()
    assert "cannot be stored for a retry" in str(running.raised[0])
    assert sum(broker.committed("g").values()) == 0


def test_a_handler_may_give_a_message_up_and_return(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 2)
    consumer = make()

    def gives_up(message: Message) -> bool:
        if message.body == b"0":
            consumer.fail(message, "not for me")
        return False

    running = Running(consumer, gives_up)
    until(lambda: len(running.got) == 2 and broker.waiting("g"))
    running.stop()
    assert sum(broker.committed("g").values()) == 2
    assert [one.error for one in broker.waiting("g")] == ["not for me"]


@pytest.mark.parametrize("order", ["key", "queue", "none"])
def test_in_an_ordered_subscription_a_message_is_retried_in_place(
    broker: SimulatedBroker, make: Make, order: str
) -> None:
    broker.configure("g", "t", ordered=True, retry_delays_s=(0,), retries=5)
    send(broker, 4)
    consumer = make()
    running = Running(consumer, lambda m: m.body == b"1" and m.attempt < 3, order=order)
    until(lambda: len(running.got) == 7)
    running.stop()
    assert running.bodies() == [0, 1, 1, 1, 1, 2, 3]
    assert sum(broker.committed("g").values()) == 4 and broker.seen(FAILURES) == []


def test_in_order_a_message_is_dead_after_its_retries_and_the_next_goes_on(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.configure("g", "t", ordered=True, retry_delays_s=(0,), retries=2)
    send(broker, 3)
    running = Running(make(), lambda m: m.body == b"1")
    until(lambda: len(running.got) == 5 and broker.dead("g"))
    running.stop()
    assert running.bodies() == [0, 1, 1, 1, 2]
    assert [one.message.body for one in broker.dead("g")] == [b"1"]
    assert sum(broker.committed("g").values()) == 3


def test_a_key_that_retries_in_place_holds_no_other_key(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.configure("g", "t", ordered=True, retry_delays_s=(3600,))
    send(broker, 100, key=None)
    running = Running(make(auto_commit_interval_ms=1), lambda m: m.body == b"7", threads=1)
    until(lambda: len(running.got) == 100)
    assert broker.wait_until(lambda: sum(broker.committed("g").values()) == 7)
    running.stop()


def test_a_batch_that_fails_comes_again_message_by_message(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 6)
    batches: list[list[int]] = []
    consumer = make()

    def handler(messages: list[Message]) -> None:
        batches.append([int(message.body) for message in messages])
        if b"1" in [message.body for message in messages]:
            raise ValueError("bad")
        if messages[-1].body == b"5":
            consumer.stop()

    consumer.run(handler, order="queue", threads=1, batch=3)
    assert batches == [[0, 1, 2], [0], [1], [2], [3, 4, 5]]
    assert [one.message.body for one in broker.waiting("g")] == [b"1"]
    assert sum(broker.committed("g").values()) == 6
