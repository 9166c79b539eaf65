"""Java clients of PMQ and CatMQ against a real broker: what each call answers, and what a group does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from brokerapi.java import endpoint
from metadata.rules.membership import addresses
from tests.support.broker import Broker
from tests.support.java_client import CONSUMER, META, JavaClient, Timing, Wire
from tests.support.waiting import until

QUICK = Timing(commit=0.1, first_beat=0.2, beat=1.0)
Clients = Callable[..., JavaClient]


@pytest.fixture(autouse=True)
def let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_networks", addresses.networks(["127.0.0.0/8"]))


@pytest.fixture
def group(broker: Broker, queue: int) -> str:
    """The name of a group that reads topic `single` from its beginning."""
    broker.ok("POST", "/groups", {"name": "readers"})
    broker.ok("POST", "/groups/readers/subscriptions", {"topic": "single", "start": "earliest"})
    return "readers"


@pytest.fixture
def client(broker: Broker) -> Iterator[Clients]:
    """A function that starts a client; all are closed at the end."""
    made: list[JavaClient] = []

    def start(handle: Any, **more: Any) -> JavaClient:
        one = JavaClient(broker.url, {"readers": ["single"]}, handle, timing=QUICK, **more)
        made.append(one)
        one.start()
        return one

    yield start
    for one in made:
        if not one.stopped.is_set():
            one.close()


def send(broker: Broker, *bodies: str) -> None:
    wire = Wire(broker.url)
    body = {"topicName": "single", "synFlag": 1, "msgs": [{"id": 0, "body": one} for one in bodies]}
    assert wire.call(CONSUMER + "publish", body)["suc"] is True
    wire.close()


def committed(broker: Broker) -> int:
    (row,) = [
        one for one in broker.ok("GET", "/groups/readers/offsets")["queues"] if one["topic"] == "single"
    ]
    return int(row["committed"])


def test_a_client_reads_what_another_sent_and_commits_it(broker: Broker, group: str, client: Clients) -> None:
    got: list[dict[str, Any]] = []
    send(broker, "a", "b", "c")
    client(lambda message, queue: got.append(message) or True)
    until(lambda: len(got) == 3)
    assert [one["body"] for one in got] == ["a", "b", "c"]
    assert [one["id"] for one in got] == [1, 2, 3]
    until(lambda: committed(broker) == 3)


def test_a_closed_client_leaves_at_once_and_the_next_goes_on(
    broker: Broker, group: str, client: Clients
) -> None:
    got: list[str] = []
    send(broker, "a", "b")
    first = client(lambda message, queue: got.append(message["body"]) or True)
    until(lambda: committed(broker) == 2)
    done = threading.Event()
    threading.Thread(target=lambda: (first.close(), done.set())).start()
    assert done.wait(3), "its poll was not ended by flag 1"
    assert broker.ok("GET", "/groups/readers")["members"] == []
    send(broker, "c")
    client(lambda message, queue: got.append(message["body"]) or True)
    until(lambda: got == ["a", "b", "c"])
