"""What tests of the pipeline do beside Spark: topics, sends, pulls by plain clients, tables
by hand.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from catmq_client import HttpTransport, Producer
from catmq_client.admin.api import Admin
from tests.support.mariadb import MariaDB
from tests.support.server import Server

_numbers = itertools.count(1)
# Spark gives the Python worker of a stream 10 s to import PySpark and connect. No setting
# changes that, and a busy machine needs longer at times.
streams = pytest.mark.flaky(
    reruns=4, reruns_delay=20, only_rerun="Python worker failed to connect back"
)


@dataclass(frozen=True)
class Stage:
    """A server, and its MariaDB node's schema and reader's password."""

    server: Server
    mariadb: MariaDB
    schema: str
    password: str

    @property
    def admin(self) -> Admin:
        """The client's management calls."""
        return Admin(
            HttpTransport(self.server.url, api_key=self.server.api_key, discover=False)
        )

    def topic(self, node: str, *, queues: int = 2, name: str = "topic") -> str:
        """A new topic on a node; its name."""
        made = f"{name}-{next(_numbers)}"
        self.admin.create_topic(made, queues=queues, node=node)
        return made

    def queues(self, topic: str) -> list[int]:
        """The ids of a topic's queues."""
        return [one["queue"] for one in self.admin.topic(topic)["queues"]]

    def send(self, topic: str, messages: Iterable[dict[str, Any]]) -> int:
        """Sends messages, each the arguments of `send_async` with a body; how many."""
        with Producer(self.server.url, api_key=self.server.api_key) as producer:
            futures = [
                producer.send_async(topic, one.pop("body"), **one) for one in messages
            ]
            producer.flush()
            return len([future.result(30) for future in futures])

    def fill(self, topic: str, count: int, *, keys: int = 7) -> None:
        """Sends so many messages: body, key, tag and headers tell their number."""
        numbers = range(count)
        self.send(
            topic,
            (
                {
                    "body": f"body {n} ü".encode(),
                    "key": f"key-{n % keys}",
                    "tag": "even" if n % 2 == 0 else None,
                    "headers": {"n": str(n)} if n % 3 == 0 else None,
                }
                for n in numbers
            ),
        )

    def pulled(self, topic: str) -> list[dict[str, Any]]:
        """All messages as the broker serves them, by queue and offset."""
        found = []
        for queue in self.queues(topic):
            offset = 0
            while page := self.admin.messages(
                topic, queue=queue, offset=offset, limit=1000
            ):
                found += [{"queue": queue, **one} for one in page]
                offset = page[-1]["offset"] + 1
        return found

    def lows(self, topic: str) -> dict[int, int]:
        """Queue → the first offset that is kept."""
        return {one["queue"]: one["low"] for one in self.admin.read_plan(topic)["queues"]}

    def execute(self, node: str, statement: str) -> list[tuple[Any, ...]]:
        """A statement on a node, past the broker."""
        if node == "maria":
            return self.mariadb.execute(
                statement.replace("{", f"{self.schema}.").replace("}", "")
            )
        with closing(sqlite3.connect(self.file, timeout=10)) as database, database:
            return list(database.execute(statement.replace("{", "").replace("}", "")))

    @property
    def file(self) -> Path:
        """The file of node main."""
        (found,) = (one for one in self.admin.nodes() if one["name"] == "main")
        return Path(self.server.data, found["database"])
