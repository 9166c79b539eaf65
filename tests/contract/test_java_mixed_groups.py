"""Python and Java clients in one group: they share its queues, and nothing is lost when some are killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerapi.java import endpoint
from catmq_client import Consumer, Producer
from metadata.rules.membership import addresses
from tests.support.broker import Broker
from tests.support.environment import ROOT
from tests.support.waiting import until

QUEUES = 8
Handled = tuple[str, int, int, str]  # member, queue, epoch, body


class Group:
    """Members of both kinds, and what they handled."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker, self.directory = broker, directory
        self.handled: list[Handled] = []
        self.java: dict[str, subprocess.Popen[bytes]] = {}
        self.stop = threading.Event()
        self.threads: list[threading.Thread] = []

    def start_java(self, name: str) -> None:
        command = [sys.executable, "-m", "tests.support.java_member", self.broker.url, "mixed", "wide"]
        with (self.directory / name).open("wb") as output:
            self.java[name] = subprocess.Popen(command, stdout=output, cwd=ROOT)

    def start_python(self, name: str) -> None:
        thread = threading.Thread(target=self._consume, args=(name,))
        self.threads.append(thread)
        thread.start()

    def _consume(self, name: str) -> None:
        with Consumer(
            self.broker.url, group="mixed", topics=["wide"], api_key=self.broker.api_key, name=name
        ) as consumer:
            while not self.stop.is_set():
                for one in consumer.poll(max_messages=20, timeout_s=0.2):
                    self.handled.append((name, one.queue, one.epoch, one.text))

    def kill(self, name: str) -> None:
        self.java[name].kill()
        self.java[name].wait()

    def all_handled(self) -> list[Handled]:
        """What all members handled so far; a line that a kill cut off does not count."""
        found = list(self.handled)
        for name in self.java:
            for line in (self.directory / name).read_text().splitlines():
                words = line.split(" ")
                if len(words) == 3 and words[2].endswith("."):
                    found.append((name, int(words[0]), int(words[1]), words[2]))
        return found

    def bodies(self) -> set[str]:
        return {body for *_, body in self.all_handled()}

    def members(self) -> set[str]:
        return {name for name, *_ in self.all_handled()}

    def owners(self) -> set[str]:
        queues = self.broker.ok("GET", "/groups/mixed/offsets")["queues"]
        return {one["owner"] for one in queues if one["topic"] == "wide" and one["owner"]}

    def close(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(20)
        for process in self.java.values():
            process.kill()
            process.wait()


@pytest.fixture
def group(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    monkeypatch.setattr(endpoint, "_networks", addresses.networks(["127.0.0.0/8"]))
    broker.ok("POST", "/topics", {"name": "wide", "queues": QUEUES})
    broker.ok("POST", "/groups", {"name": "mixed", "session_timeout_ms": 4_000})
    broker.ok("POST", "/groups/mixed/subscriptions", {"topic": "wide", "start": "earliest"})
    made = Group(broker, tmp_path)
    yield made
    made.close()


def test_two_of_each_share_the_queues_and_kills_lose_nothing(broker: Broker, group: Group) -> None:
    sent: set[str] = set()

    def send(count: int) -> None:
        with Producer(broker.url, api_key=broker.api_key) as producer:
            for number in range(len(sent), len(sent) + count):
                producer.send("wide", f"m-{number}.".encode(), key=str(number))
                sent.add(f"m-{number}.")

    for name in ("java-1", "java-2"):
        group.start_java(name)
    for name in ("python-1", "python-2"):
        group.start_python(name)
    until(lambda: len(group.owners()) == 4, limit_s=60)
    shown = broker.ok("GET", "/groups/mixed")["members"]
    assert sorted(one["sdk"].partition("/")[0] for one in shown) == [
        *("catmq-client", "catmq-client", "pmq-java", "pmq-java")
    ]
    send(200)
    until(lambda: group.bodies() == sent and len(group.members()) == 4, limit_s=60)

    group.kill("java-1")  # kill -9: it neither commits nor leaves
    send(200)
    until(lambda: len(group.owners()) == 3, limit_s=60)
    group.start_java("java-3")
    send(200)
    until(lambda: len(group.owners()) == 4, limit_s=60)
    group.kill("java-2")
    send(200)
    until(lambda: group.bodies() == sent, limit_s=90)
    assert_one_owner_at_a_time(group.all_handled())


def assert_one_owner_at_a_time(handled: list[Handled]) -> None:
    """Fail if two members handled messages of a queue under one epoch: a reader row names one owner."""
    owners: dict[tuple[int, int], set[str]] = {}
    for name, queue, epoch, _ in handled:
        owners.setdefault((queue, epoch), set()).add(name)
    assert [key for key, names in owners.items() if len(names) > 1] == []
