"""Reports that heartbeats carry: what they say of a consumer, and that brokers of any
release take them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from catmq_client import Consumer, Message, NewMessage, Producer, ShareConsumer
from catmq_client.errors import FieldError, InvalidRequest
from catmq_client.telemetry import process_report
from catmq_client.testing import FakeBroker
from tests.support.shares import send, shared_topic
from tests.support.simulated import SimulatedBroker

LIMIT_S = 10.0


class Watched:
    """The way to a broker that asks for a report each `every_ms`; keeps the bodies of
    heartbeats.

    An `old` broker refuses what it does not know.
    """

    def __init__(self, broker: FakeBroker, *, every_ms: int = 0) -> None:
        self.broker = broker
        self.bodies: list[dict[str, Any]] = []
        self.old = False
        self._every_ms = every_ms
        self._changed = threading.Condition()

    def becomes(self, true: Callable[[], object]) -> bool:
        """Return True if `true()`, looked at after every heartbeat, became true in time."""
        with self._changed:
            return bool(self._changed.wait_for(true, LIMIT_S))

    def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        if not path.endswith("/heartbeat"):
            return self.broker.request(method, path, **more)
        with self._changed:
            self.bodies.append(more["body"])
            self._changed.notify_all()
        if self.old and "report" in more["body"]:
            wrong = FieldError("report", "is not a field of this request")
            raise InvalidRequest(
                "report: is not a field of this request", errors=[wrong], status=400
            )
        answer = self.broker.request(method, path, **more)
        return answer if self.old else {**answer, "report_every_ms": self._every_ms}

    @property
    def reports(self) -> list[dict[str, Any]]:
        return [body["report"] for body in self.bodies if "report" in body]


@pytest.fixture
def broker() -> SimulatedBroker:
    made = SimulatedBroker(session_timeout_ms=300_000)
    made.create_topic("t", queues=1)
    made.subscribe("g", "t").heartbeat_interval_ms = 20
    with Producer(transport=made) as producer:
        producer.send_batch("t", [NewMessage(b"%d" % n) for n in range(9)])
    return made


@pytest.fixture
def watched(broker: SimulatedBroker) -> Watched:
    return Watched(broker)


@pytest.fixture
def at_work() -> Iterator[Callable[[Consumer | ShareConsumer], threading.Event]]:
    """Runs a consumer in a thread: its handler fails for message 1, and waits with message
    2.
    """
    ends: list[tuple[threading.Event, Consumer | ShareConsumer, threading.Thread]] = []

    def start(consumer: Consumer | ShareConsumer) -> threading.Event:
        begun, go_on = threading.Event(), threading.Event()

        def handler(message: Message) -> None:
            if message.body == b"1":
                raise ValueError("planted")
            if message.body == b"2":
                begun.set()
                go_on.wait(LIMIT_S)

        thread = threading.Thread(
            target=lambda: consumer.run(handler, threads=1), daemon=True
        )
        ends.append((go_on, consumer, thread))
        thread.start()
        return begun

    yield start
    for go_on, consumer, thread in ends:
        go_on.set()
        consumer.stop()
        thread.join(LIMIT_S)


def test_a_report_names_threads_counts_and_the_message_that_takes_long(
    watched: Watched, at_work: Callable[..., threading.Event]
) -> None:
    begun = at_work(Consumer(transport=watched, group="g", name="one"))

    assert begun.wait(LIMIT_S)
    assert watched.becomes(
        lambda: bool(watched.reports) and watched.reports[-1].get("slowest")
    )
    told = watched.reports[-1]
    assert (told["threads"], told["busy"], told["handled"], told["failed"]) == (1, 1, 1, 1)
    assert (told["slowest"]["offset"], told["slowest"]["running_ms"] >= 0) == (2, True)
    assert told["buffered"] + told["handled"] + told["failed"] <= 9


def test_a_member_of_a_share_group_reports_likewise(
    at_work: Callable[..., threading.Event],
) -> None:
    broker = shared_topic()
    broker.find_group("g").heartbeat_interval_ms = 20
    send(broker, 3)
    watched = Watched(broker)
    begun = at_work(ShareConsumer(transport=watched, group="g", name="one"))

    assert begun.wait(LIMIT_S)
    assert watched.becomes(
        lambda: bool(watched.reports) and watched.reports[-1].get("slowest")
    )
    told = watched.reports[-1]
    assert (told["threads"], told["busy"], told["slowest"]["offset"]) == (1, 1, 2)
    assert (told["handled"], told["failed"]) == (1, 1)


def test_without_run_the_message_that_the_application_has_is_the_slowest(
    watched: Watched,
) -> None:
    with Consumer(transport=watched, group="g", name="one") as consumer:
        assert [next(consumer).offset, next(consumer).offset] == [0, 1]
        assert watched.becomes(
            lambda: bool(watched.reports) and watched.reports[-1]["handled"] == 1
        )
        told = watched.reports[-1]
    assert (told["threads"], told["busy"], told["slowest"]["offset"]) == (1, 1, 1)


def test_a_report_comes_no_more_often_than_brokers_ask_for_it(
    broker: SimulatedBroker,
) -> None:
    watched = Watched(broker, every_ms=3_600_000)
    with Consumer(transport=watched, group="g", name="one") as consumer:
        next(consumer)
        assert watched.becomes(lambda: len(watched.bodies) > 5)
    assert len(watched.reports) == 1
    assert "report" not in watched.bodies[0]  # nobody had asked yet


def test_an_older_broker_is_never_sent_a_report(watched: Watched) -> None:
    watched.old = True
    with Consumer(transport=watched, group="g", name="one") as consumer:
        next(consumer)
        assert watched.becomes(lambda: len(watched.bodies) > 5)
    assert not watched.reports


def test_a_report_that_an_older_broker_refuses_costs_one_heartbeat(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While brokers are upgraded one after the other, an older one may get what a newer one
    asked for.
    """
    monkeypatch.setattr(process_report, "PAUSE_S", 3600.0)
    with Consumer(transport=watched, group="g", name="one") as consumer:
        assert next(consumer).offset == 0
        assert watched.becomes(lambda: len(watched.reports) > 1)
        watched.old = True
        before = len(watched.bodies)
        assert watched.becomes(lambda: len(watched.bodies) > before + 5)
        assert sum("report" in body for body in watched.bodies[before:]) <= 1
        watched.old = False
        before = len(watched.bodies)
        assert watched.becomes(lambda: len(watched.bodies) > before + 3)
        # the pause is not over
        assert not any("report" in body for body in watched.bodies[before:])
        assert next(consumer).offset == 1


def test_another_refusal_of_a_heartbeat_ends_the_consumer_as_before(
    watched: Watched,
) -> None:
    reports = process_report.ProcessReports(Consumer(transport=watched, group="g")._state)
    wrong = FieldError("owned", "is too long")

    assert not reports.was_refused(InvalidRequest("wrong", errors=[wrong]))
    assert not reports.was_refused(InvalidRequest("wrong"))
    assert reports.was_refused(
        InvalidRequest("no", errors=[FieldError("report.slowest.x", "no")])
    )
