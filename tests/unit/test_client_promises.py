"""Heartbeats that cannot be recorded: by which answers a member goes on, and by which it
does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from catmq_client import Consumer, NewMessage, Producer
from catmq_client.errors import (
    AnswerLost,
    CatmqError,
    ConnectFailed,
    Unavailable,
    from_problem,
)
from catmq_client.reading.clocks import lease_clock
from tests.support.becoming import becomes
from tests.support.simulated import SimulatedBroker
from tests.support.waiting import until

Make = Callable[..., Consumer]


class Brokers:
    """Two URLs of one SimulatedBroker. `says`: by URL, what makes the error that its
    heartbeats end with.
    """

    urls: tuple[str, ...] = ("a", "b")

    def __init__(self, broker: SimulatedBroker) -> None:
        self.broker = broker
        self.says: dict[str, Callable[[], CatmqError]] = {}
        self.current = 0
        # errors of other threads' requests undo each change of the current one
        self.is_pinned = False
        self.asked: list[str] = []

    def request(
        self, method: str, path: str, *, first: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """To the first, or the current one; an error makes the next request go to the
        other.
        """
        url = first or self.urls[self.current]
        if path.endswith("/heartbeat"):
            self.asked.append(url)
            if url in self.says:
                self.current = (self.current + (not self.is_pinned)) % len(self.urls)
                error = self.says[url]()
                error.brokers = (url,)
                raise error
        return self.broker.request(method, path, **more)


@pytest.fixture
def broker() -> SimulatedBroker:
    made = SimulatedBroker(session_timeout_ms=300_000)
    made.create_topic("t", queues=1)
    with Producer(transport=made) as producer:
        producer.send_batch("t", [NewMessage(b"%d" % n) for n in range(9)])
    return made


@pytest.fixture
def brokers(broker: SimulatedBroker) -> Brokers:
    return Brokers(broker)


@pytest.fixture
def make(brokers: Brokers) -> Iterator[Make]:
    made: list[Consumer] = []

    def consumer(**options: Any) -> Consumer:
        options = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, **options}
        one = Consumer(
            transport=brokers, group="g", topics=["t"], max_poll_records=4, **options
        )
        made.append(one)
        assert one.poll(1, timeout_s=10.0)
        return one

    yield consumer
    brokers.says.clear()
    for one in made:
        one.close()


def promise(silent_ms: int = 0) -> CatmqError:
    problem = {
        "code": "metadata_unavailable",
        "retriable": True,
        "metadata_silent_ms": silent_ms,
    }
    return from_problem(503, problem)


def busy() -> CatmqError:
    return Unavailable("too many", code="busy", status=503)


def refusal() -> CatmqError:
    return Unavailable("it may be done", code="metadata_unavailable", status=503)


def lost() -> CatmqError:
    return AnswerLost("cut")


def asked_again(consumer: Consumer, brokers: Brokers, count: int = 2) -> None:
    """Returns when so many more heartbeats were answered, and another has been asked for."""
    before = len(brokers.asked)

    def enough() -> bool:
        consumer._state.heartbeat_wanted = True
        consumer._state.changed.notify_all()
        return len(brokers.asked) > before + count

    assert becomes(consumer, enough)


def ends(consumer: Consumer, *, ago_s: float = 0.0) -> None:
    """The lease ends now, or did some time ago."""
    state = consumer._state
    with state.changed:
        state.lease_until = state.recorded_lease_until = lease_clock() - ago_s


def goes_on(consumer: Consumer) -> bool:
    return bool(consumer.poll(1, timeout_s=0.01))


def test_a_member_goes_on_by_the_promises_of_all_its_brokers(
    make: Make, brokers: Brokers
) -> None:
    consumer = make()
    brokers.says = {"a": promise, "b": promise}
    ends(consumer)
    asked_again(consumer, brokers)
    assert {"a", "b"} <= set(brokers.asked)
    assert becomes(consumer, lambda: consumer._state.has_lease())
    assert goes_on(consumer)


@pytest.mark.parametrize("other", [busy, refusal, lost])
def test_a_member_does_not_go_on_while_one_broker_has_promised_nothing(
    make: Make, brokers: Brokers, other: Callable[[], CatmqError]
) -> None:
    consumer = make()
    brokers.says = {"a": promise, "b": other}
    ends(consumer)
    asked_again(consumer, brokers, 6)
    assert not goes_on(consumer)


def test_a_broker_that_promised_is_not_asked_before_the_other(
    make: Make, brokers: Brokers
) -> None:
    consumer = make()
    with consumer._state.changed:
        consumer._state.heartbeat_interval_s = 3600.0
    brokers.says = {"a": promise, "b": promise}
    brokers.asked.clear()
    consumer._state.want_heartbeat()
    assert becomes(consumer, lambda: len(brokers.asked) >= 2)
    assert sorted(brokers.asked) == ["a", "b"]


def test_the_broker_that_has_not_promised_is_asked_wherever_other_requests_go(
    make: Make, brokers: Brokers
) -> None:
    consumer = make()
    brokers.is_pinned = True
    brokers.says = {"a": promise, "b": promise}
    ends(consumer)
    asked_again(consumer, brokers)
    assert becomes(consumer, lambda: consumer._state.has_lease())


def test_a_broker_that_does_not_answer_keeps_no_heartbeat_from_the_other(
    make: Make, brokers: Brokers
) -> None:
    consumer = make()
    brokers.is_pinned = True
    brokers.says = {"a": promise, "b": lost}
    asked_again(consumer, brokers, 4)
    brokers.says = {"b": lost}  # the other records heartbeats again
    ends(consumer)
    asked_again(consumer, brokers)
    assert becomes(consumer, lambda: consumer._state.has_lease())


def test_answers_that_get_lost_after_a_promise_do_not_end_the_lease(
    make: Make, brokers: Brokers
) -> None:
    brokers.urls = ("a",)
    consumer = make()
    brokers.says = {"a": promise}
    ends(consumer)
    asked_again(consumer, brokers)
    brokers.says = {"a": lost}
    asked_again(consumer, brokers)
    assert goes_on(consumer)


def test_a_promise_that_may_come_after_an_expiry_counts_for_nothing(
    make: Make, brokers: Brokers
) -> None:
    brokers.urls = ("a",)
    consumer = make()
    brokers.says = {"a": lambda: promise(silent_ms=2_000)}
    ends(consumer, ago_s=60.0)
    asked_again(consumer, brokers)
    assert not goes_on(consumer)


def test_after_a_promise_that_counts_for_nothing_a_member_waits_for_the_next_heartbeat(
    make: Make, brokers: Brokers
) -> None:
    consumer = make()
    with consumer._state.changed:
        consumer._state.heartbeat_interval_s = 3600.0
    brokers.says = {"a": promise, "b": promise}
    ends(consumer, ago_s=60.0)
    brokers.asked.clear()
    consumer._state.want_heartbeat()
    assert becomes(consumer, lambda: bool(brokers.asked))
    assert not goes_on(consumer)
    assert len(brokers.asked) == 1


def test_after_a_promise_that_counts_for_nothing_the_other_broker_is_asked(
    make: Make, brokers: Brokers
) -> None:
    consumer = make()
    brokers.current = 0
    brokers.says = {"a": promise}  # the other one records heartbeats
    ends(consumer, ago_s=60.0)
    asked_again(consumer, brokers)
    assert becomes(consumer, lambda: consumer._state.has_lease())


def test_a_late_promise_counts_if_its_broker_has_heard_nothing_since_the_lease(
    make: Make, brokers: Brokers
) -> None:
    brokers.urls = ("a",)
    consumer = make()
    brokers.says = {"a": lambda: promise(silent_ms=120_000)}
    ends(consumer, ago_s=60.0)
    asked_again(consumer, brokers)
    assert goes_on(consumer)


def test_who_is_to_stop_without_its_coordinator_takes_no_promise(
    make: Make, brokers: Brokers
) -> None:
    brokers.urls = ("a",)
    consumer = make(on_coordinator_loss="stop")
    brokers.says = {"a": promise}
    ends(consumer)
    asked_again(consumer, brokers)
    assert not goes_on(consumer)


@pytest.mark.parametrize(
    ("ordered", "options", "begins"),
    [
        (True, {}, False),
        (True, {"on_coordinator_loss": "continue"}, True),
        (False, {}, True),
        (False, {"on_coordinator_loss": "stop"}, False),
    ],
)
def test_of_an_ordered_subscription_nothing_begins_that_a_new_owner_may_have(
    broker: SimulatedBroker,
    make: Make,
    brokers: Brokers,
    *,
    ordered: bool,
    options: Any,
    begins: bool,
) -> None:
    broker.subscribe("g", "t")
    broker.configure("g", "t", ordered=ordered)
    brokers.urls = ("a",)
    consumer = make(name="former", **options)
    brokers.says = {"a": promise}
    broker.fail(
        f"{consumer._state.consumer_id}/pull", ConnectFailed("away"), times=1_000_000
    )
    ends(consumer)
    broker.expire("g", "former")  # by a broker that the member does not know
    with Consumer(transport=broker, group="g", topics=["t"], name="heir") as heir:
        assert [message.offset for message in heir.poll(2, timeout_s=10.0)] == [0, 1]
        asked_again(consumer, brokers)
        # The former owner has message 1 in its buffer, with the key that the new one is at
        # work on.
        assert goes_on(consumer) is begins


def test_an_ordered_subscription_that_stopped_holds_up_no_other_and_resumes_with_heartbeats(
    broker: SimulatedBroker, brokers: Brokers
) -> None:
    broker.create_topic("u", queues=1)
    for topic in ("t", "u"):
        broker.subscribe("g", topic)
    broker.configure("g", "t", ordered=True)
    brokers.urls = ("a",)
    handled: list[str] = []
    consumer = Consumer(transport=brokers, group="g", topics=["t", "u"], retry_backoff_ms=1)
    running = threading.Thread(
        target=consumer.run,
        args=(lambda m: handled.append(m.topic),),
        kwargs={"threads": 1},
    )
    running.start()
    try:
        until(lambda: len(handled) == 9)
        brokers.says = {"a": promise}
        ends(consumer)
        asked_again(consumer, brokers)
        with Producer(transport=broker) as producer:
            producer.send_batch("t", [b"", b""])
            producer.send_batch("u", [b"", b""])
        until(lambda: handled.count("u") == 2)
        assert handled.count("t") == 9
        brokers.says = {}
        asked_again(consumer, brokers)
        until(lambda: handled.count("t") == 11)
    finally:
        consumer.stop()
        running.join(10.0)


@pytest.mark.parametrize(
    ("answer", "comes_back"), [(promise, True), (lost, False), (refusal, False)]
)
def test_a_released_queue_comes_back_only_if_certainly_no_broker_knows(
    make: Make, brokers: Brokers, answer: Callable[[], CatmqError], *, comes_back: bool
) -> None:
    brokers.urls = ("a",)
    consumer = make()
    state = consumer._state
    brokers.says = {"a": answer}
    with state.changed:
        (owned,) = state.queues.values()
        state.release(owned)
        state.changed.notify_all()
    asked_again(consumer, brokers)
    brokers.says = {"a": promise}
    asked_again(consumer, brokers)
    with state.changed:
        assert bool(state.queues) == comes_back


def test_a_heartbeat_that_fails_for_long_is_logged_once_and_its_end_is(
    make: Make, brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="catmq.consumer")
    consumer = make()
    caplog.clear()
    brokers.says = {"a": promise, "b": lost}
    asked_again(consumer, brokers, 20)
    brokers.says = {}
    asked_again(consumer, brokers)
    told = [
        record.getMessage()
        for record in caplog.records
        if "heartbeat" in record.getMessage()
    ]
    assert len(told) == 2
    assert "failed: " in told[0]
    assert "works again after" in told[1]
