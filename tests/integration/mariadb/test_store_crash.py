"""The database server is killed in the middle of sends and immediate reads.

With the binary log on and synced, nothing that was acknowledged or served is lost or
changed: the rows a reader saw are the rows that are there afterwards.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from messagestore.engine.messages import NewMessage
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.tables import message_sql
from messagestore.topology import topics
from metadata.actors import command
from metadata.errors import CatmqError
from tests.support.environment import free_port
from tests.support.mariadb import MariaDB, start
from tests.support.waiting import until

ACTOR = command("test")
ROUNDS = 3


@pytest.fixture
def crashing(tmp_path: Path) -> Iterator[MariaDB]:
    """A server of this test's own, with a synced binary log."""
    options = ["--log-bin", "--sync-binlog=1", "--server-id=1", "--binlog-format=ROW"]
    server = start(tmp_path / "crashing", port=free_port(), options=options)
    yield server
    server.stop()


def test_kill_9_of_the_server_loses_and_changes_nothing(
    crashing: MariaDB, make_node: Callable[..., str]
) -> None:
    with crashing.schema() as schema:
        account = {
            "host": "127.0.0.1",
            "port": crashing.port,
            "username": "catmq",
            "password": crashing.password,
        }
        make_node("crashing", engine="mysql", database=schema, **account)
        queue = topics.create(name="orders", queues=1, actor=ACTOR).queues[0].queue.queue
        acknowledged, seen = _through_crashes(crashing, queue)
        stored = _read(queue, 0, 1 << 30)
        sent = crashing.execute(f"SELECT SUM(message_count) FROM {schema}.sent_batch")[0][0]
        assert list(stored) == list(range(len(stored))), "dense"
        assert int(sent) == len(stored), "every row belongs to a batch"
        assert {offset: stored[offset] for offset in acknowledged} == acknowledged, (
            "acknowledged is stored"
        )
        assert {offset: stored[offset] for offset in seen} == seen, (
            "what was served has not changed"
        )
        assert len(set(stored.values())) == len(stored), "nothing is stored twice"


def _through_crashes(
    server: MariaDB, queue: int
) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Four writers and a reader work while the server dies ROUNDS times; {offset: body} of
    both kinds.
    """
    acknowledged: dict[int, bytes] = {}
    seen: dict[int, bytes] = {}
    stop = threading.Event()
    with ThreadPoolExecutor(5) as pool:
        works = [pool.submit(_write, name, queue, acknowledged, stop) for name in range(4)]
        works.append(pool.submit(_follow, queue, seen, stop))
        try:
            for _ in range(ROUNDS):
                goal = len(acknowledged) + 400
                until(lambda goal=goal: len(acknowledged) > goal, limit_s=60)  # type: ignore[misc]
                os.kill(server.pid, signal.SIGKILL)
                until(lambda: not _alive(server), limit_s=10)
                server.start()
            goal = len(acknowledged) + 100
            until(lambda: len(acknowledged) > goal, limit_s=60)
        finally:
            stop.set()
        for work in works:
            work.result(60)
    assert len(seen) > 100 * ROUNDS
    return acknowledged, seen


def _write(
    name: int, queue: int, acknowledged: dict[int, bytes], stop: threading.Event
) -> None:
    number = 0
    while not stop.is_set():
        bodies = [b"%d-%d-%d" % (name, number, index) for index in range(5)]
        number += 1
        messages = [NewMessage(body=body, queue=queue) for body in bodies]
        try:
            receipts: list[Any] = publish(
                topic="orders", messages=messages, batch_id=None, actor=ACTOR
            )
        except CatmqError as error:
            assert error.retriable, error
            continue
        acknowledged.update(
            {receipt.offset: body for receipt, body in zip(receipts, bodies, strict=True)}
        )


def _follow(queue: int, seen: dict[int, bytes], stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            seen.update(_read(queue, len(seen), len(seen) + 500))
        except CatmqError as error:
            assert error.retriable, error


def _read(queue: int, first: int, end: int) -> dict[int, bytes]:
    with node_pools.node_of(queue).reading() as session:
        return {
            row.offset: row.body
            for row in message_sql.select_messages(
                session, queue=queue, first=first, end=end, most_bytes=1 << 30
            )
        }


def _alive(server: MariaDB) -> bool:
    try:
        return (
            "Z"
            not in Path(f"/proc/{server.pid}/stat")
            .read_text()
            .rpartition(")")[2]
            .split()[0]
        )
    except OSError:
        return False
