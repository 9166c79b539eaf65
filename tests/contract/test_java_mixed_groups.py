"""Python and Java clients in one group: they share its queues, and nothing is lost when
some are killed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from catmq_client import Producer
from messagestore.pool import node_pools
from messagestore.tables import reader_sql
from metadata.cache import snapshot
from tests.support.broker import Broker
from tests.support.mixed_group import (
    MixedGroup,
    Owners,
    assert_one_member_of_an_epoch,
    assert_one_owner_of_an_epoch,
)
from tests.support.waiting import until

QUEUES = 8
LOOK_S = 0.05


class Group(MixedGroup):
    """The group of these tests, on a broker in this process."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        super().__init__("mixed", "wide", directory, broker.api_key or "")
        self.broker = broker

    def begin(self, *names: str) -> None:
        """Start members at the broker."""
        self.start(*names, url=self.broker.url)

    def owners(self) -> set[str]:
        queues = self.broker.ok("GET", "/groups/mixed/offsets")["queues"]
        return {one["owner"] for one in queues if one["topic"] == "wide" and one["owner"]}


class ReaderRows:
    """The owners that the reader rows of the group's queues named, looked at all the time."""

    def __init__(self) -> None:
        self.seen: Owners = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> ReaderRows:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        group = snapshot.find_group("mixed").id
        queues = snapshot.find_topic("wide").queues
        while not self._stop.wait(LOOK_S):
            with node_pools.node_of(queues[0]).reading() as session:
                rows = reader_sql.read_positions(
                    session, group_id=group, queues=queues, instance=""
                )
            for row in rows.values():
                if row.owner and row.epoch is not None:
                    self.seen.setdefault((row.queue, row.epoch), set()).add(row.owner)


@pytest.fixture
def group(
    failure_node: str, broker: Broker, tmp_path: Path, java_let_in: None
) -> Iterator[Group]:
    broker.ok("POST", "/topics", {"name": "wide", "queues": QUEUES})
    broker.ok("POST", "/groups", {"name": "mixed", "session_timeout_ms": 4_000})
    broker.ok("POST", "/groups/mixed/subscriptions", {"topic": "wide", "start": "earliest"})
    settings = {"retries": 3, "retry_delays_s": [1]}
    broker.ok("PATCH", "/groups/mixed/subscriptions/wide", settings)
    made = Group(broker, tmp_path)
    yield made
    made.close()


class Sender:
    """Sends messages with bodies of their own."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.sent: set[str] = set()

    def send(self, count: int, kind: str = "m") -> None:
        bodies = [
            f"{kind}-{number}." for number in range(len(self.sent), len(self.sent) + count)
        ]
        with Producer(self._broker.url, api_key=self._broker.api_key) as producer:
            for body in bodies:
                producer.send("wide", body.encode(), key=body)
        self.sent |= set(bodies)


def test_two_of_each_share_the_queues_and_kills_lose_nothing(
    broker: Broker, group: Group
) -> None:
    sender = Sender(broker)
    with ReaderRows() as rows:
        group.begin("java-1", "java-2", "python-1", "python-2")
        until(lambda: len(group.owners()) == 4, limit_s=60)
        shown = broker.ok("GET", "/groups/mixed")["members"]
        assert sorted(one["sdk"].partition("/")[0] for one in shown) == [
            *("catmq-client", "catmq-client", "pmq-java", "pmq-java")
        ]
        sender.send(200)
        until(
            lambda: group.bodies() == sender.sent and len(group.members()) == 4, limit_s=60
        )
        group.kill("java-1")
        group.kill("python-1")
        sender.send(200)
        until(lambda: len(group.owners()) == 2, limit_s=60)
        group.begin("java-3", "python-3")
        sender.send(200)
        until(lambda: len(group.owners()) == 4, limit_s=60)
        group.kill("java-2")
        sender.send(200)
        until(lambda: group.bodies() == sender.sent, limit_s=90)
    assert len(rows.seen) > QUEUES, "the rows were not looked at while queues moved"
    assert_one_owner_of_an_epoch(rows.seen)
    assert_one_member_of_an_epoch(group.all_handled())


def test_a_message_that_failed_at_one_kind_is_handled_by_the_other(
    broker: Broker, group: Group
) -> None:
    sender = Sender(broker)
    group.begin("java-1", "python-1")
    until(lambda: len(group.owners()) == 2, limit_s=60)

    def crossings() -> set[tuple[str, str]]:
        failed = group.failed()
        return {
            (failed[body], name)
            for name, _, _, body in group.all_handled()
            if body in failed
        }

    sender.send(40, "bad")
    until(lambda: group.bodies() == sender.sent, limit_s=60)
    assert set(group.failed()) == sender.sent
    assert {("java-1", "python-1"), ("python-1", "java-1")} <= crossings()
    assert broker.ok("GET", "/groups/mixed/dead")["messages"] == []
