"""The measured loops. Each runs in processes of its own, which start together and run for a
fixed time.

raw_insert     multi-row INSERT into AUTO_INCREMENT tables with our columns: the limit of sending
store_publish  `messagestore.produce.publish` without HTTP
…_together     the same by all processes into one table, one queue
http_publish   Producer.send_batch(topic, bodies): no key and no queue is named
…_named        the same with a key for each message and one named queue for each process
raw_select     SELECT by primary key over a stored queue: the limit of reading
http_pull      the client's Transport pulling a stored queue, 500 messages a request
http_consume   Consumer.poll(), with the commits that it makes by default
…_committed    Consumer.poll(100) and a commit() for each batch
…_with_pulls   Consumer.poll(100), committed by the pulls (auto_commit_interval_ms=0)
drf_single     one message a request to a DRF view that parses the body and stores nothing: the
               limit of …
http_single    … Producer.send(topic, body), each by several threads that share the Producer
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from benchmarks.processes import tree_cpu_s

BODY = bytes(range(200))
RAW_TABLE = """CREATE TABLE IF NOT EXISTS raw_{0} (
    msg_offset BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, msg_key VARCHAR(200), tag VARCHAR(100),
    headers MEDIUMTEXT, body MEDIUMBLOB NOT NULL, trace_id VARCHAR(100),
    producer VARCHAR(100) NOT NULL,
    stored_at DATETIME(3) NOT NULL, attempt SMALLINT NOT NULL DEFAULT 0, origin TEXT
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"""
RAW_INSERT = """INSERT INTO raw_{0} (msg_key, tag, headers, body, trace_id, producer, stored_at)
    VALUES (%s, %s, %s, %s, %s, %s, %s)"""


@dataclass(frozen=True)
class Setting:
    """Where things are and how large a batch is; handed to every process."""

    url: str
    api_key: str
    database: dict[str, Any]  # arguments of MySQLdb.connect for the node's schema
    topic: str
    queues: tuple[int, ...]
    batch: int
    drf_url: str = ""


Work = Callable[[Setting, int], Callable[[], int]]


def raw_insert(setting: Setting, worker: int) -> Callable[[], int]:
    """One multi-row INSERT per call, on a table of the worker's own."""
    return _inserts(setting, str(worker))


def raw_insert_together(setting: Setting, worker: int) -> Callable[[], int]:
    """The same, all workers on one table."""
    return _inserts(setting, "together")


def _inserts(setting: Setting, table: str) -> Callable[[], int]:
    connection = _connect(setting)
    cursor = connection.cursor()
    cursor.execute(RAW_TABLE.format(table))
    statement = RAW_INSERT.format(table)
    keys = [f"key-{number}" for number in range(setting.batch)]

    def once() -> int:
        rows = [
            (key, None, None, BODY, None, "bench", "2026-01-01 00:00:00.000")
            for key in keys
        ]
        cursor.executemany(statement, rows)
        return len(rows)

    return once


def store_publish(setting: Setting, worker: int) -> Callable[[], int]:
    """One batch per call through `messagestore.produce.publish`, into a queue of the
    worker's own.
    """
    import django

    django.setup()
    from messagestore.engine.messages import NewMessage
    from messagestore.produce.publish import publish
    from metadata.actors import command

    queue, actor = setting.queues[worker % len(setting.queues)], command("bench")
    keys = [f"key-{number}" for number in range(setting.batch)]

    def once() -> int:
        messages = [NewMessage(body=BODY, key=key, queue=queue) for key in keys]
        return len(
            publish(topic=setting.topic, messages=messages, batch_id=None, actor=actor)
        )

    return once


def store_publish_together(setting: Setting, worker: int) -> Callable[[], int]:
    """The same, all workers into one queue."""
    return store_publish(setting, 0)


def http_publish(setting: Setting, worker: int) -> Callable[[], int]:
    """One batch of bodies per call through Producer.send_batch, without options."""
    from catmq_client import Producer

    producer = Producer(setting.url, api_key=setting.api_key)
    bodies = [BODY] * setting.batch
    return lambda: stored(producer.send_batch(setting.topic, bodies))


def stored(results: Sequence[Any]) -> int:
    """Return the number of receipts. Raise the first error of a batch that is not stored."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return len(results)


def http_publish_named(setting: Setting, worker: int) -> Callable[[], int]:
    """One batch per call, each message with a key, into a queue of the worker's own."""
    from catmq_client import NewMessage, Producer

    producer = Producer(setting.url, api_key=setting.api_key)
    queue = setting.queues[worker % len(setting.queues)]
    keys = [f"key-{number}" for number in range(setting.batch)]

    def once() -> int:
        messages = [NewMessage(BODY, key=key, queue=queue) for key in keys]
        return stored(producer.send_batch(setting.topic, messages))

    return once


def raw_select(setting: Setting, worker: int) -> Callable[[], int]:
    """One SELECT of 500 rows per call, by primary key, over and over a stored queue."""
    cursor = _connect(setting).cursor()
    queue = setting.queues[worker % len(setting.queues)]
    columns = (
        "msg_offset, msg_key, tag, headers, body, trace_id, "
        "UNIX_TIMESTAMP(stored_at), attempt"
    )
    wanted = "msg_offset >= %s AND msg_offset < %s ORDER BY msg_offset"
    statement = f"SELECT {columns} FROM message_{queue} WHERE {wanted}"
    position = 0

    def once() -> int:
        nonlocal position
        cursor.execute(statement, (position, position + 500))
        rows = cursor.fetchall()
        position = position + len(rows) if len(rows) == 500 else 0
        return len(rows)

    return once


def http_pull(setting: Setting, worker: int) -> Callable[[], int]:
    """One pull of 500 messages per call, over and over a stored queue, as member of a group
    of its own.
    """
    from catmq_client import HttpTransport
    from catmq_client.http.transport import api_path

    transport = HttpTransport(setting.url, api_key=setting.api_key)
    queue = setting.queues[worker % len(setting.queues)]
    member = {
        "name": "bench",
        "incarnation": str(uuid.uuid4()),
        "topics": [setting.topic],
        "sdk": "bench",
    }
    joined = transport.request(
        "POST", api_path("groups", f"bench-{uuid.uuid4()}", "consumers"), body=member
    )
    path = ("consumers", joined["consumer_id"])
    beat = {"generation": 0, "owned": []}
    given = transport.request("POST", api_path(*path, "heartbeat"), body=beat)
    (claim,) = [
        {"queue": a["queue"], "epoch": a["epoch"]}
        for a in given["assigned"]
        if a["queue"] == queue
    ]
    transport.request("POST", api_path(*path, "acquire"), body={"queues": [claim]})
    wanted = {
        "generation": given["generation"],
        "max_messages": 500,
        "max_bytes": 8 << 20,
        "wait_ms": 0,
    }
    position = 0

    def once() -> int:
        nonlocal position
        body = {**wanted, "queues": [{**claim, "offset": position}]}
        (pulled,) = transport.request("POST", api_path(*path, "pull"), body=body)["queues"]
        got = len(pulled["rows"])
        position = position + got if got == 500 else 0
        return got

    return once


def http_consume(setting: Setting, worker: int) -> Callable[[], int]:
    """One poll() per call, committed as by default, in a group that reads all queues."""
    consumer = _consumer(setting)
    return lambda: len(consumer.poll(timeout_s=1.0))


def http_consume_committed(setting: Setting, worker: int) -> Callable[[], int]:
    """One poll of the batch per call and a commit for it, in a group that reads all queues."""
    consumer = _consumer(setting)

    def once() -> int:
        count = len(consumer.poll(setting.batch, timeout_s=1.0))
        consumer.commit()
        return count

    return once


def http_consume_with_pulls(setting: Setting, worker: int) -> Callable[[], int]:
    """One poll of the batch per call, whose commit goes with the next pull, in a group that
    reads all queues.
    """
    consumer = _consumer(setting, auto_commit_interval_ms=0)
    return lambda: len(consumer.poll(setting.batch, timeout_s=1.0))


def _consumer(setting: Setting, **options: Any) -> Any:
    from catmq_client import Consumer

    group = f"bench-{uuid.uuid4()}"
    return Consumer(
        setting.url,
        api_key=setting.api_key,
        group=group,
        topics=[setting.topic],
        **options,
    )


@functools.cache
def _shared_producer(url: str, api_key: str) -> Any:
    from catmq_client import Producer

    return Producer(url, api_key=api_key)


def http_single(setting: Setting, worker: int) -> Callable[[], int]:
    """One Producer.send per call. All threads of a process share the Producer."""
    producer = _shared_producer(setting.url, setting.api_key)

    def once() -> int:
        producer.send(setting.topic, BODY)
        return 1

    return once


def drf_single(setting: Setting, worker: int) -> Callable[[], int]:
    """Per call, post one message to the view that parses it and stores nothing."""
    from catmq_client import HttpTransport
    from catmq_client.http.transport import api_path
    from catmq_client.http.wire import JsonCodec

    transport = HttpTransport(
        setting.drf_url, api_key=setting.api_key, codec=JsonCodec(), discover=False
    )
    path = api_path("topics", setting.topic, "messages")
    body = {"messages": [{"body": "x" * 200, "key": "k"}]}
    return lambda: len(transport.request("POST", path, body=body)["results"])


class Measured(NamedTuple):
    """Messages of all processes, their rate a second, and CPU seconds by side.

    The sides are `client` and those that the caller of `run` named.
    """

    messages: int
    rate: float
    cpu_s: dict[str, float]


def run(
    work: Work,
    setting: Setting,
    *,
    processes: int,
    seconds: float,
    threads: int = 1,
    sides: Mapping[str, Sequence[int]] | None = None,
) -> Measured:
    """Run a loop in several processes, each with several threads.

    `sides` names process ids by side; their CPU time is taken with that of all processes
    below them, from the common start of the loops to their end.
    """
    sides = sides or {}
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes + 1)
    pipes: list[Connection] = []
    started = []
    for worker in range(processes):
        here, there = context.Pipe(duplex=False)
        process = context.Process(
            target=_loop, args=((work, setting, worker), barrier, (seconds, threads), there)
        )
        process.start()
        started.append(process)
        pipes.append(here)
    barrier.wait(60)
    before = {name: tree_cpu_s(pids) for name, pids in sides.items()}
    results: list[tuple[int, float, float]] = [pipe.recv() for pipe in pipes]
    cpu_s = {name: tree_cpu_s(pids) - before[name] for name, pids in sides.items()}
    for process in started:
        process.join()
    return Measured(
        messages=sum(messages for messages, _, _ in results),
        rate=sum(rate for _, rate, _ in results),
        cpu_s={"client": sum(client_s for _, _, client_s in results), **cpu_s},
    )


def _loop(
    job: tuple[Work, Setting, int],
    barrier: Any,
    length: tuple[float, int],
    answer: Connection,
) -> None:
    work, setting, worker = job
    seconds, threads = length
    onces = [work(setting, worker) for _ in range(threads)]
    for once in onces:
        once()  # connections, caches and pages are warm before the clock runs
    barrier.wait(60)
    cpu_before_s = time.process_time()
    with ThreadPoolExecutor(threads) as pool:
        counts = list(pool.map(lambda once: _count(once, seconds), onces))
    messages = sum(count for count, _ in counts)
    rate = sum(count / took_s for count, took_s in counts)
    answer.send((messages, rate, time.process_time() - cpu_before_s))
    answer.close()
    # nothing to tidy up, and threads of the client must not delay the next measure
    os._exit(0)


def _count(once: Callable[[], int], seconds: float) -> tuple[int, float]:
    begun = time.monotonic()
    done = 0
    while (now := time.monotonic()) < begun + seconds:
        done += once()
    return done, now - begun


def _connect(setting: Setting) -> Any:
    import MySQLdb

    return MySQLdb.connect(**setting.database, charset="utf8mb4", autocommit=True)
