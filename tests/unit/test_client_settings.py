"""What operators set of a subscription reaches a running consumer with a heartbeat; limits
of handlers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from catmq_client import Consumer, Message, NewMessage, Producer
from tests.support.becoming import becomes
from tests.support.consumers import Make, making
from tests.support.simulated import SimulatedBroker
from tests.support.waiting import until

LIMIT_S = 10.0


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


def send(broker: SimulatedBroker, *tags: str | None) -> None:
    with Producer(transport=broker) as producer:
        producer.send_batch(
            "t", [NewMessage(b"%d" % n, tag=tag) for n, tag in enumerate(tags)]
        )


def run(
    consumer: Consumer, handler: Callable[[Message], object], **options: Any
) -> threading.Thread:
    thread = threading.Thread(target=lambda: consumer.run(handler, **options))
    thread.start()
    return thread


def end(consumer: Consumer, thread: threading.Thread) -> None:
    consumer.stop()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_the_number_of_threads_follows_the_subscription_up_and_down(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.configure("g", "t", threads=3)
    consumer = make()
    lock, at_work, most, gate = threading.Lock(), [0], [0], threading.Event()

    def handler(message: Message) -> None:
        with lock:
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
        gate.wait(LIMIT_S)
        with lock:
            at_work[0] -= 1

    thread = run(consumer, handler, threads=1)
    assert becomes(consumer, lambda: consumer._state.limits.threads == 3)
    send(broker, *[None] * 20)
    until(lambda: at_work[0] == 3)
    broker.configure("g", "t", threads=1)
    assert becomes(consumer, lambda: consumer._state.limits.threads == 1)
    gate.set()
    assert broker.wait_until(lambda: sum(broker.committed("g").values()) == 20)
    gate.clear()
    most[0] = 0
    send(broker, *[None] * 5)
    until(lambda: at_work[0] == 1)
    gate.set()
    assert broker.wait_until(lambda: sum(broker.committed("g").values()) == 25)
    end(consumer, thread)
    assert most[0] == 1


def test_sizes_and_waits_of_pulls_follow_the_subscription(
    broker: SimulatedBroker, make: Make
) -> None:
    consumer = make(max_poll_records=400)
    consumer.poll(timeout_s=0.0)
    assert broker.wait_until(
        lambda: any(s.body["max_messages"] == 400 for s in broker.seen("/pull$"))
    )
    broker.configure("g", "t", max_poll_records=7, fetch_max_wait_ms=50)
    wanted = (7, 50)
    assert broker.wait_until(
        lambda: any(
            (s.body["max_messages"], s.body["wait_ms"]) == wanted
            for s in broker.seen("/pull$")
        )
    )


def test_another_tag_filter_holds_for_what_is_held_already(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, *["old", "new"] * 5)
    consumer = make()
    assert consumer.poll(1, timeout_s=LIMIT_S)[0].tag == "old"
    broker.configure("g", "t", tags=("new",))
    assert becomes(consumer, lambda: consumer._state.settings["t"].tags == ("new",))
    taken: list[Message] = []
    while len(taken) < 5:
        taken += consumer.poll(timeout_s=LIMIT_S)
    assert {message.tag for message in taken} == {"new"}
    assert consumer.poll(timeout_s=0.0) == []
    consumer.commit()
    assert broker.committed("g")[1] == 10


def test_another_header_filter_holds_for_what_is_held_already(
    broker: SimulatedBroker, make: Make
) -> None:
    with Producer(transport=broker) as producer:
        regions = ["asia", "eu", "us"] * 3
        producer.send_batch(
            "t", [NewMessage(b"", headers={"region": region}) for region in regions]
        )
    consumer = make()
    assert consumer.poll(1, timeout_s=LIMIT_S)[0].headers == {"region": "asia"}
    wanted = {"region": ("eu", "us")}
    broker.configure("g", "t", headers={"region": ["eu", "us"]})
    assert becomes(consumer, lambda: consumer._state.settings["t"].headers == wanted)
    taken: list[Message] = []
    while len(taken) < 6:
        taken += consumer.poll(timeout_s=LIMIT_S)
    assert [message.headers["region"] for message in taken] == ["eu", "us"] * 3
    assert consumer.poll(timeout_s=0.0) == []
    consumer.commit()
    assert broker.committed("g")[1] == 9


def test_what_a_filter_leaves_out_is_committed_although_nothing_comes(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.configure("g", "t", tags=("new",), fetch_max_wait_ms=10)
    send(broker, *["old"] * 5)
    consumer = make(auto_commit_interval_ms=1)
    assert consumer.poll(timeout_s=0.0) == []
    assert broker.wait_until(lambda: broker.committed("g")[1] == 5)


def test_a_delayed_subscription_gets_messages_when_they_are_old_enough(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.configure("g", "t", delay_s=60)
    send(broker, None)
    consumer = make()
    assert consumer.poll(timeout_s=0.1) == []
    broker.advance(60)
    assert len(consumer.poll(timeout_s=LIMIT_S)) == 1


def test_a_reset_while_reading_is_followed(broker: SimulatedBroker, make: Make) -> None:
    send(broker, *[None] * 3)
    consumer = make()
    taken: list[Message] = []
    while len(taken) < 3:
        taken += consumer.poll(timeout_s=LIMIT_S)
    consumer.commit()
    broker.reset("g", "t", to=1)
    again = consumer.poll(timeout_s=LIMIT_S)
    assert again[0].offset == 1 and again[0].epoch > taken[0].epoch


def test_a_handler_that_takes_too_long_has_failed_and_another_thread_goes_on(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.configure("g", "t", handler_timeout_ms=100)
    send(broker, *[None] * 3)
    release = threading.Event()
    consumer = make(auto_commit_interval_ms=1)

    def handler(message: Message) -> None:
        if message.offset == 0 and message.attempt == 0:
            release.wait(LIMIT_S)

    thread = run(consumer, handler, threads=1)
    assert broker.wait_until(lambda: broker.committed("g")[1] == 3)
    (waiting,) = broker.waiting("g")
    assert "did not return within 0.1 s" in waiting.error
    release.set()
    end(consumer, thread)
    assert len(broker.seen("/failures$")) == 1, "what it does later counts for nothing"


def test_no_more_threads_are_left_alone_than_there_are(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.configure("g", "t", handler_timeout_ms=100)
    send(broker, *[None] * 6)
    release = threading.Event()
    began: list[int] = []
    consumer = make()

    def handler(message: Message) -> None:
        began.append(message.offset)
        if message.attempt == 0:
            release.wait(LIMIT_S)

    thread = run(consumer, handler, threads=2)
    until(lambda: len(broker.waiting("g")) == 2 and len(began) == 4)
    assert not consumer._state.wait(0.3, lambda: len(began) > 4) or len(began) == 4
    release.set()
    end(consumer, thread)


def test_a_handler_that_keeps_failing_rests_and_gets_one_message_to_try(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.configure("g", "t", breaker_failures=3, breaker_pause_s=1)
    send(broker, *[None] * 20)
    works = threading.Event()
    tried: list[int] = []
    consumer = make(auto_commit_interval_ms=1)

    def handler(message: Message) -> None:
        tried.append(message.offset)
        if not works.is_set():
            raise ValueError("the database is away")

    thread = run(consumer, handler, threads=1)
    until(lambda: [queue.queue for queue in consumer.paused_by_breaker()] == [1])
    assert len(tried) == 3
    until(lambda: len(tried) == 4)
    works.set()
    assert broker.wait_until(lambda: broker.committed("g")[1] == 20)
    assert consumer.paused_by_breaker() == []
    end(consumer, thread)
    assert 4 <= len(broker.waiting("g")) <= 5


def test_of_a_batch_only_the_messages_that_failed_are_traced_as_failed(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.configure("g", "t", trace_percent=100)
    send(broker, None, None, None)
    consumer = make()

    def handler(messages: list[Message]) -> None:
        consumer.fail(messages[0], "planted")
        consumer.stop()

    consumer.run(handler, threads=1, batch=3)

    (request,) = broker.seen("POST .*/traces")
    outcomes = [trace["outcome"] for trace in request.body["traces"]]
    assert outcomes == ["failed", "handled", "handled"]
