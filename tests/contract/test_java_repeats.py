"""Java clients with nothing to read: they wait in the worker's loop without a thread, and
miss nothing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from brokerapi.http import draining, longpoll, metrics
from brokerapi.java import endpoint, holds, joining, polling, reading
from messagestore.heads.heads import board
from metadata.brokers import java_callers
from metadata.config import config
from metadata.models import Heartbeat
from tests.support.broker import Broker
from tests.support.java_client import JavaClient, Timing
from tests.support.waiting import until

QUICK = Timing(commit=0.1, first_beat=0.2, beat=0.5, empty_pull=0.1, all_from=0.0)
Start = Callable[..., JavaClient]
pytestmark = pytest.mark.usefixtures("java_let_in")


@pytest.fixture
def group(broker: Broker, topic: str) -> str:
    """The name of a group that reads the two queues of topic `orders`."""
    broker.ok("POST", "/groups", {"name": "readers"})
    broker.ok(
        "POST", "/groups/readers/subscriptions", {"topic": topic, "start": "earliest"}
    )
    return "readers"


@pytest.fixture
def start(broker: Broker, group: str) -> Iterator[Start]:
    """A function that starts a client."""
    with ExitStack() as stack:

        def make(handle: Any) -> JavaClient:
            one = JavaClient(broker.url, {group: ["orders"]}, handle, timing=QUICK)
            one.start()
            stack.callback(lambda: one.stopped.is_set() or one.close())
            return one

        yield make


class Reader:
    """What a client handled."""

    def __init__(self) -> None:
        self.bodies: list[str] = []

    def __call__(self, message: dict[str, Any], queue: dict[str, Any]) -> bool:
        self.bodies.append(message["body"])
        return True


def send(broker: Broker, *bodies: str) -> None:
    messages = [{"body": one, "key": one} for one in bodies]
    broker.ok("POST", "/topics/orders/messages", {"messages": messages})


def held(broker: Broker) -> int:
    """The number of requests that wait without a thread."""
    assert broker.worker is not None
    return len(broker.worker.held)


def idle(broker: Broker, start: Start) -> tuple[JavaClient, Reader]:
    """A client that has read and committed both queues to the end, and waits without a
    thread.

    No thread may wait here, so the full answers before come at once.
    """
    reader = Reader()
    with ExitStack() as stack:
        for places in (longpoll._places, holds._short_places):
            stack.enter_context(mock.patch.object(places, "take", return_value=False))
        client = start(reader)
        send(broker, *(f"before-{number}" for number in range(20)))
        until(lambda: len(reader.bodies) == 20)
        until(lambda: held(broker) == 4)  # its poll, its commit, and a pull of each queue
    return client, reader


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of a second."""
    monkeypatch.setattr(polling, "HOLD_S", 1.0)
    monkeypatch.setattr(reading, "HOLD_MS", 1_000)
    monkeypatch.setattr(reading, "COMMIT_HOLD_S", 1.0)
    monkeypatch.setattr(reading, "IDLE_HOLD_S", 0.2)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("polls_elsewhere", [False, True])
def test_all_that_an_idle_client_asks_takes_no_thread_and_is_counted(
    broker: Broker, start: Start, monkeypatch: pytest.MonkeyPatch, polls_elsewhere: bool
) -> None:
    """Another process may have its polls, so that a heartbeat here is what tells that it
    lives.
    """
    if polls_elsewhere:
        monkeypatch.setattr(polling, "has_just_polled", lambda java_id: False)
    client, _ = idle(broker, start)
    java_callers.flush()
    asked, counted = Counter(client.calls), metrics.REPEATED._value.get()
    seen_at = Heartbeat.objects.get().last_seen

    with mock.patch.object(
        joining, "_must_register", wraps=joining._must_register
    ) as looked_up:
        time.sleep(3)

    made = Counter(client.calls)
    made.subtract(asked)
    assert (
        made["pullData"] >= 2
        and made["getConsumerGroupPolling"] >= 2
        and made["commitOffset"] >= 2
    )
    assert made["heartbeat"] >= 4 and looked_up.call_count <= 1
    assert metrics.REPEATED._value.get() - counted >= made.total() - 5, (
        "those that wait now are not counted yet"
    )
    ((caller, counts),) = java_callers._counts.items()
    assert caller[1].startswith("pmq-java/") and counts["answered"] >= made.total() - 5
    assert (Heartbeat.objects.get().last_seen - seen_at).total_seconds() >= 1, (
        "its polls keep it alive"
    )


def test_a_message_ends_the_wait_at_once(broker: Broker, start: Start) -> None:
    _, reader = idle(broker, start)

    begun = time.monotonic()
    send(broker, "news")
    until(lambda: "news" in reader.bodies)

    assert time.monotonic() - begun < 1.0, "the pull waits for up to 8 s"
    assert reader.bodies.count("news") == 1


def test_a_member_that_joins_ends_the_wait_of_the_poll(
    broker: Broker, start: Start
) -> None:
    idle(broker, start)
    reader = Reader()

    begun = time.monotonic()
    other = start(reader)
    until(
        lambda: [
            one for one in other.known["readers"].queues if other.known["readers"].running
        ]
    )

    assert time.monotonic() - begun < 6.0, "the poll waits for up to 7 s"
    send(broker, *(f"after-{number}" for number in range(20)))
    until(lambda: reader.bodies)


def test_settings_that_change_end_it_too(broker: Broker, start: Start) -> None:
    client, _ = idle(broker, start)

    begun = time.monotonic()
    broker.ok("PATCH", "/groups/readers/subscriptions/orders", {"handler_batch": 7})
    until(
        lambda: (
            {one["consumerBatchSize"] for one in client.known["readers"].queues.values()}
            == {7}
        )
    )

    assert time.monotonic() - begun < 3.0


def test_an_offset_that_is_set_back_reaches_a_client_that_waits(
    broker: Broker, start: Start
) -> None:
    _, reader = idle(broker, start)
    assert len(reader.bodies) == 20

    broker.ok("PATCH", "/groups/readers/offsets", {"to": "earliest"})
    until(lambda: len(reader.bodies) == 40, limit_s=20)


def test_a_broker_that_is_drained_lets_nobody_wait(broker: Broker, start: Start) -> None:
    client, _ = idle(broker, start)
    draining.disable()
    try:
        until(lambda: held(broker) == 0, limit_s=2)
    finally:
        draining.enable()
    assert not client.stopped.is_set()


def test_a_client_that_stops_need_not_wait_for_its_poll(
    broker: Broker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit with `flag` 1 moves no offset, and its poll has no news."""
    monkeypatch.setattr(polling, "HOLD_S", 9.0)
    client, _ = idle(broker, start)
    closing = threading.Thread(target=client.close)
    closing.start()
    closing.join(4)
    assert not closing.is_alive()


@pytest.mark.usefixtures("brief")
def test_a_client_that_closes_leaves_nothing_behind(broker: Broker, start: Start) -> None:
    client, _ = idle(broker, start)
    client.close()
    until(lambda: held(broker) == 0)

    until(lambda: board.waiters() == 0)
    assert broker.ok("GET", "/groups/readers")["members"] == []


@pytest.mark.usefixtures("brief")
def test_a_rate_that_is_exceeded_is_told_as_ever(broker: Broker, start: Start) -> None:
    idle(broker, start)
    java_callers.flush()

    with mock.patch.object(
        endpoint, "config", replace(config, java_requests_per_s=1, workers=1_000)
    ):
        endpoint._buckets.clear()
        until(
            lambda: sum(counts["limited"] for counts in java_callers._counts.values()) >= 2
        )
    endpoint._buckets.clear()
