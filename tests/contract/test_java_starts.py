"""Java clients that lost the threads that pull: they are told to start again, once, and
nobody else is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from brokerapi.java import endpoint
from messagestore.consume import java_starts
from messagestore.consume.java_starts import JavaStarts
from metadata.cache import snapshot
from metadata.membership import java_pulls
from metadata.rules.membership import addresses
from tests.support.broker import Broker
from tests.support.java_client import JavaClient, Timing
from tests.support.waiting import until

Handle = Callable[[dict[str, Any], dict[str, Any]], bool]
Clients = Callable[[Handle], JavaClient]


@pytest.fixture
def client(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Clients]:
    """A function that starts a client of a group that reads topic `single`; all are closed
    at the end.
    """
    monkeypatch.setattr(endpoint, "_networks", addresses.parse_networks(["127.0.0.0/8"]))
    monkeypatch.setattr(java_pulls, "SILENT_S", -1.0)  # whatever was noted is long ago
    monkeypatch.setattr(java_starts, "WATCHED_S", 0.0)
    monkeypatch.setattr(java_pulls, "_noted", {})
    broker.ok("POST", "/groups", {"name": "readers"})
    broker.ok(
        "POST", "/groups/readers/subscriptions", {"topic": "single", "start": "earliest"}
    )
    made: list[JavaClient] = []

    def start(handle: Handle) -> JavaClient:
        made.append(
            JavaClient(
                broker.url, {"readers": ["single"]}, handle, timing=Timing(commit=0.1)
            )
        )
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.close()


def send(broker: Broker, body: str) -> None:
    broker.ok("POST", "/topics/single/messages", {"messages": [{"body": body}]})


def committed(broker: Broker) -> int:
    rows = broker.ok("GET", "/groups/readers/offsets")["queues"]
    return int(next(one["committed"] for one in rows if one["topic"] == "single"))


def end_pulls(client: JavaClient) -> None:
    """End the threads that pull, as two failed pulls end those of CatMQ's client; it polls
    and commits on.
    """
    for one in client._executors.values():
        one._stopped.set()


def test_a_client_whose_pulls_have_ended_is_told_to_start_again_once(
    broker: Broker, client: Clients
) -> None:
    got: list[str] = []
    send(broker, "a")
    dead = client(lambda message, queue: got.append(message["body"]) or True)
    until(lambda: got == ["a"] and committed(broker) == 1)
    end_pulls(dead)
    java_pulls.flush()
    starts = JavaStarts()
    assert starts.run_once() == 1
    assert starts.run_once() == 0, "it was told so already"
    send(broker, "b")
    until(lambda: got == ["a", "b"] and committed(broker) == 2, limit_s=40)
    java_pulls.flush()
    end_pulls(dead)
    assert starts.run_once() == 1, "it has pulled since, so it is watched again"


def test_a_client_that_handles_a_message_for_long_is_left_alone(
    broker: Broker, client: Clients
) -> None:
    begun, done = threading.Event(), threading.Event()
    send(broker, "long")
    client(lambda message, queue: begun.set() or done.wait(20))
    assert begun.wait(20)
    java_pulls.flush()
    try:
        assert [
            one.delivered_end
            for one in java_pulls.find_silent_queues()
            if one.delivered_end
        ] == [1]
        assert JavaStarts().run_once() == 0
    finally:
        done.set()


def test_a_stopped_group_is_left_alone(broker: Broker, client: Clients) -> None:
    got: list[str] = []
    send(broker, "a")
    client(lambda message, queue: got.append(message["body"]) or True)
    until(lambda: got and committed(broker) == 1)
    broker.ok("PATCH", "/groups/readers", {"stopped": True})
    snapshot.refresh()  # as the loop of a worker would
    java_pulls.flush()
    assert java_pulls.find_silent_queues()
    assert JavaStarts().run_once() == 0


def test_a_queue_is_watched_before_its_client_is_told(
    broker: Broker, client: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, "a")
    client(lambda message, queue: True)
    until(lambda: committed(broker) == 1)
    java_pulls.flush()
    monkeypatch.setattr(java_starts, "WATCHED_S", 60.0)
    starts = JavaStarts()
    assert [starts.run_once(), starts.run_once()] == [0, 0]
    assert starts.since
