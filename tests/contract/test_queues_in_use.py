"""A topic expanded and shrunk twice under a running producer and two running consumers.

Judged: every message that was acknowledged arrives, once for each offset of each queue; in
each queue the messages of a key are in the order of their sends; and a key whose slot never
moved is in order altogether.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import pytest

from catmq_client import Consumer, Message, Producer
from messagestore.topology import drains
from metadata.rules.topics.slots import slot_of
from tests.support.broker import Broker
from tests.support.waiting import until

KEYS = [f"key-{number}" for number in range(40)]
EACH = 300  # messages at least between two changes


class Sent(NamedTuple):
    """An acknowledged message."""

    queue: int
    offset: int
    key: str | None
    number: int


class Sender:
    """Sends numbered messages, four of five with a key, until it is told to stop."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.sent: list[Sent] = []
        self.errors: list[BaseException] = []
        self._topic = topic
        self._producer = Producer(
            broker.url, api_key=broker.api_key, metadata_max_age_ms=300, linger_ms=1
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        with self._producer as producer:
            while not self._stop.is_set():
                batch = []
                for _ in range(20):
                    number += 1
                    key = KEYS[number % len(KEYS)] if number % 5 else None
                    batch.append(
                        (
                            number,
                            key,
                            producer.send_async(self._topic, str(number), key=key),
                        )
                    )
                for one, key, future in batch:
                    try:
                        receipt = future.result(30)
                        self.sent.append(Sent(receipt.queue, receipt.offset, key, one))
                    except BaseException as error:  # noqa: BLE001 - the judge looks at it
                        self.errors.append(error)

    def goes_on(self) -> None:
        """Waits until so many more messages were acknowledged."""
        before = len(self.sent)
        until(lambda: len(self.sent) >= before + EACH or self.errors, limit_s=30)
        assert self.errors == []

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)


class Reader:
    """A consumer of the group that polls until it is told to stop."""

    def __init__(self, broker: Broker, topic: str, name: str, taken: list[Message]) -> None:
        self._consumer = Consumer(
            broker.url,
            api_key=broker.api_key,
            group="g",
            topics=[topic],
            name=name,
            auto_commit_interval_ms=50,
        )
        self._taken = taken
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._consumer as consumer:
            while not self._stop.is_set():
                self._taken.extend(consumer.poll(timeout_s=0.1))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)


@pytest.fixture
def taken() -> list[Message]:
    """What the two consumers were handed, in the order in which that happened."""
    return []


@pytest.fixture(params=["strict", "available"])
def topic(request: pytest.FixtureRequest, broker: Broker) -> str:
    """A topic of two queues whose keyed messages wait for their queue, or do not."""
    broker.ok("POST", "/topics", {"name": "orders", "queues": 2, "keyed": request.param})
    return "orders"


@pytest.fixture
def readers(broker: Broker, topic: str, taken: list[Message]) -> Iterator[list[Reader]]:
    """Two consumers of group g."""
    made = [Reader(broker, topic, name, taken) for name in ("a", "b")]
    yield made
    for reader in made:
        reader.stop()


@pytest.fixture
def sender(broker: Broker, topic: str, readers: list[Reader]) -> Iterator[Sender]:
    """A producer that is sending."""
    made = Sender(broker, topic)
    yield made
    made.stop()


class History:
    """What the layouts said, looked at after every change."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker, self._topic = broker, topic
        self.homes: dict[str, set[int]] = defaultdict(set)
        self.look()

    def look(self) -> list[dict[str, object]]:
        """The queues now."""
        shown = self._broker.ok("GET", f"/topics/{self._topic}")
        for key in KEYS:
            self.homes[key].add(shown["layout"]["slots"][slot_of(key)])
        queues: list[dict[str, object]] = shown["queues"]
        return queues

    def ids(self, state: str) -> list[object]:
        """The queues in a state."""
        return [one["queue"] for one in self.look() if one["state"] == state]

    def all_retired(self) -> bool:
        """Runs the job; whether no queue drains any more."""
        drains.retire_drained(rest_s=-1.0)
        return not self.ids("read_only")

    def steady(self) -> list[str]:
        """The keys whose slot never moved."""
        return [key for key in KEYS if len(self.homes[key]) == 1]


def in_order(numbers: list[int]) -> bool:
    return numbers == sorted(numbers)


def judge(taken: list[Message], sent: list[Sent]) -> dict[str, list[int]]:
    """Fails unless all of `sent` arrived once, those of a key in order in each queue; key →
    its numbers.
    """
    arrived = Counter((message.queue, message.offset) for message in taken)
    assert arrived == Counter((one.queue, one.offset) for one in sent)
    assert set(arrived.values()) == {1}
    of_queue: dict[tuple[int, str], list[int]] = defaultdict(list)
    of_key: dict[str, list[int]] = defaultdict(list)
    for message in taken:
        if message.key is not None:
            of_queue[message.queue, message.key].append(int(message.text))
            of_key[message.key].append(int(message.text))
    assert all(in_order(numbers) for numbers in of_queue.values())
    return of_key


def test_a_topic_grows_and_shrinks_twice_while_it_is_used(
    broker: Broker, topic: str, sender: Sender, taken: list[Message]
) -> None:
    history = History(broker, topic)
    for more, fewer in ((2, 2), (3, 1)):
        sender.goes_on()
        broker.ok("POST", f"/topics/{topic}/expand", {"queues": more})
        sender.goes_on()
        oldest = history.ids("read_write")[:fewer]
        broker.ok("POST", f"/topics/{topic}/shrink", {"queues": oldest})
        history.look()
        sender.goes_on()
        until(history.all_retired, limit_s=30)
    sender.goes_on()
    sender.stop()
    until(lambda: len(taken) >= len(sender.sent), limit_s=30)

    assert sender.errors == []
    of_key = judge(taken, sender.sent)
    assert len(history.ids("retired")) == 3
    if broker.ok("GET", f"/topics/{topic}")["keyed"] == "strict":
        assert {one.queue for one in sender.sent} == {
            *history.ids("retired"),
            *history.ids("read_write"),
        }
        assert all(in_order(of_key[key]) for key in history.steady())
        for key in KEYS:  # a key that has gone to another queue does not come back
            path = [
                queue
                for queue, _ in groupby(one.queue for one in sender.sent if one.key == key)
            ]
            assert len(set(path)) == len(path)
