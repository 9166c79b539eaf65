"""A large topic out of the real input: sent once, then multiplied by SQL over past days;
and its sums.

What is copied keeps key, headers and body, so sums per path stay whole multiples of the
input's.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import bench
from benchmarks.measures import Setting
from catmq_client import HttpTransport, Producer
from catmq_client.admin.api import Admin

INPUT = (
    Path(__file__).resolve().parent.parent
    / "examples/data/nats-server-file-changes.jsonl.gz"
)
KEPT_DAYS = 60
# of each queue: what a topic has that keeps 60 days, by metadata/rules/topics/partitions.py
PARTITIONS = 4
AT_ONCE = 2  # queues that the database works on
LIVE = "live-"  # how the keys begin of what is sent meanwhile
Sums = dict[str, int]  # path → lines added - lines deleted
COPIED = "msg_key, tag, headers, body, trace_id, producer"


def create(setting: Setting, topic: str, *, node: str, queues: int) -> None:
    """A topic that keeps what it is given."""
    admin(setting).create_topic(topic, queues=queues, node=node, retention_days=KEPT_DAYS)


def queues_of(setting: Setting, topic: str) -> list[int]:
    """The ids of a topic's queues."""
    return [one["queue"] for one in admin(setting).topic(topic)["queues"]]


def admin(setting: Setting) -> Admin:
    """The client's management calls."""
    return Admin(HttpTransport(setting.url, api_key=setting.api_key, discover=False))


@dataclass(frozen=True)
class Shape:
    """How a topic is filled: about so many rows, equally many of each of the last days."""

    rows: int
    days: int = 5
    partitions: int = PARTITIONS


def fill(setting: Setting, topic: str, shape: Shape) -> int:
    """Fills an empty topic; how many rows it has then."""
    with gzip.open(INPUT, "rt") as lines:
        events = [
            line.strip()
            for line in itertools.islice(lines, max(1, shape.rows // shape.days))
        ]
    with Producer(setting.url, api_key=setting.api_key) as producer:
        for event in events:
            producer.send_async(topic, event.encode(), key=json.loads(event)["path"])
        producer.flush()
    copies = max(shape.days, shape.rows // len(events))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        queues = queues_of(setting, topic)
        return sum(pool.map(lambda queue: multiply(setting, queue, copies, shape), queues))


def multiply(setting: Setting, queue: int, copies: int, shape: Shape) -> int:
    """Copies a queue's rows behind themselves, from some days ago to yesterday; how many
    then.
    """
    (count,) = ask(setting, f"SELECT COUNT(*) FROM message_{queue}")[0]
    end = count * copies
    partition(setting, queue, end, width=max(1, -(-end // shape.partitions)))
    for copy in range(copies - 1, -1, -1):  # the rows that are copied go last
        day = (
            f"UTC_DATE() - INTERVAL {shape.days - copy * shape.days // copies} DAY + "
            "INTERVAL 1 HOUR"
        )
        if copy == 0:
            run(
                setting,
                f"UPDATE message_{queue} SET stored_at = {day} WHERE msg_offset < {count}",
            )
            continue
        run(
            setting,
            f"INSERT INTO message_{queue} (msg_offset, stored_at, {COPIED}) "
            f"SELECT msg_offset + {copy * count}, {day}, {COPIED} FROM message_{queue} "
            f"WHERE msg_offset < {count}",
        )
    run(setting, f"UPDATE queue_head SET head = {end} WHERE queue_id = {queue}")
    return int(end)


def partition(setting: Setting, queue: int, end: int, *, width: int) -> None:
    """Gives a queue's table the partitions that so many rows would have got one after the
    other.
    """
    ends = range(width, end + 3 * width, width)
    parts = ", ".join(f"PARTITION below_{one} VALUES LESS THAN ({one})" for one in ends)
    run(setting, f"ALTER TABLE message_{queue} PARTITION BY RANGE (msg_offset) ({parts})")


def sums(setting: Setting, topic: str, *, before_today: bool) -> tuple[int, Sums]:
    """(rows, sums per path) of a topic's messages, by SQL on the node alone, without what
    is sent live.
    """
    rows, found = 0, Counter[str]()
    old = "AND stored_at < UTC_DATE()" if before_today else ""
    text = "CONVERT(body USING utf8mb4)"
    change = f"JSON_VALUE({text}, '$.added') - JSON_VALUE({text}, '$.deleted')"

    def grouped(queue: int) -> list[Any]:
        return ask(
            setting,
            f"SELECT msg_key, COUNT(*), SUM({change}) FROM message_{queue} "
            f"WHERE msg_key NOT LIKE '{LIVE}%' {old} GROUP BY msg_key",
        )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        of_queues = pool.map(grouped, queues_of(setting, topic))
        for path, count, lines in itertools.chain.from_iterable(of_queues):
            rows += count
            found[path] += int(lines)
    return rows, dict(found)


def ask(setting: Setting, statement: str) -> list[Any]:
    """The rows of a statement."""
    connection = bench.connect(setting.database)
    cursor = connection.cursor()
    cursor.execute(statement)
    found = list(cursor.fetchall())
    connection.close()
    return found


def run(setting: Setting, statement: str) -> None:
    """Runs a statement."""
    bench.execute(setting.database, statement)
