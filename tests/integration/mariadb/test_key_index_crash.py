"""An index build that is interrupted: by kill -9 of the server, and by retention and senders
that need the table meanwhile.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from messagestore.engine.messages import MessageSearch, NewMessage
from messagestore.heads import partitions
from messagestore.inspect import search
from messagestore.inspect.search import SearchedBy, TimeRange
from messagestore.produce.publish import publish
from messagestore.topology import key_indexes, topics
from messagestore.topology.key_indexes import ChangedQueue
from metadata.actors import command
from metadata.cache import snapshot
from metadata.errors import NodeUnavailable
from metadata.topics import topic_rows
from tests.support.environment import free_port
from tests.support.mariadb import NO_BINLOG, MariaDB, is_alive, start
from tests.support.waiting import until

ACTOR = command("test")
ROWS = 262_144  # below the end of the last partition, with long keys: enough for a build of seconds
ADD_ROWS = """INSERT INTO {table} (msg_offset, msg_key, body, producer, stored_at)
    SELECT msg_offset + {shift}, CONCAT(SUBSTRING(SHA2(msg_offset + {shift}, 512), 1, 100), 'k'),
           body, producer, stored_at FROM {table}"""
SEEN = """SELECT COUNT(*) FROM information_schema.PROCESSLIST
    WHERE INFO LIKE 'ALTER TABLE message%' AND STATE LIKE 'alter%'"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MariaDB]:
    """A server of this test's own."""
    server = start(tmp_path / "server", port=free_port(), options=NO_BINLOG)
    yield server
    server.stop()


@pytest.fixture
def queue(server: MariaDB, make_node: Callable[..., str]) -> Iterator[int]:
    """A queue of topic `orders` with ROWS messages, whose index is wanted and missing."""
    with server.schema() as schema:
        account = {
            "host": "127.0.0.1",
            "port": server.port,
            "username": "catmq",
            "password": server.password,
        }
        make_node("busy", engine="mysql", database=schema, **account)
        settings = {"key_index": False}
        made = topics.create(name="orders", queues=1, settings=settings, actor=ACTOR)
        snapshot.refresh()
        queue = made.queues[0].queue.queue
        table = f"{schema}.message_{queue}"
        send("first")
        shift = 1
        while shift < ROWS:
            server.execute(ADD_ROWS.format(table=table, shift=shift))
            shift *= 2
        server.execute(f"UPDATE {schema}.queue_head SET head = {shift}")
        topic_rows.update(name="orders", settings={"key_index": True}, actor=ACTOR)
        snapshot.refresh()
        yield queue


def send(key: str) -> None:
    messages = [NewMessage(body=b"m", key=key)]
    publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)


def build() -> ChangedQueue:
    (change,) = key_indexes.build(actor=ACTOR)
    return change


@pytest.fixture
def building(server: MariaDB, queue: int) -> Iterator[Future[ChangedQueue]]:
    """A build whose ALTER TABLE is under way."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(build)
        until(lambda: server.execute(SEEN)[0][0] == 1, limit_s=60, every_s=0.001)
        yield future


def searched(key: str) -> tuple[SearchedBy, int]:
    wanted = MessageSearch(key=key)
    result = search.search_messages(
        topic="orders", wanted=wanted, times=TimeRange(), actor=ACTOR
    )
    return result.by, len(result.messages)


def test_kill_9_of_the_server_leaves_the_old_table_and_a_repeat_builds_the_index(
    server: MariaDB, queue: int, building: Future[ChangedQueue]
) -> None:
    os.kill(server.pid, signal.SIGKILL)
    assert building.result(60).problem
    until(lambda: not is_alive(server), limit_s=10)
    server.start()

    until(lambda: not key_indexes.build(actor=ACTOR), limit_s=120, every_s=0.5)

    assert searched("first") == (SearchedBy.INDEX, 1)
    send("after the crash")
    assert searched("after the crash") == (SearchedBy.INDEX, 1)


def test_retention_and_new_partitions_wait_a_bounded_time_for_the_build(
    server: MariaDB,
    queue: int,
    building: Future[ChangedQueue],
) -> None:
    began_at = time.monotonic()
    with pytest.raises(NodeUnavailable, match="is locked by another session"):
        partitions.extend(queue, urgent=False, ahead=20)
    waited_s = time.monotonic() - began_at
    is_building = not building.done()

    assert building.result(120).problem == ""
    assert not is_building or waited_s < 10
    assert partitions.extend(queue, urgent=False, ahead=20) > 0


def test_writers_do_not_fail_during_the_build(
    queue: int, building: Future[ChangedQueue]
) -> None:
    sent = 0
    while not building.done():
        send(f"meanwhile {sent}")
        sent += 1
    assert building.result().problem == ""
    assert sent > 10
    assert searched(f"meanwhile {sent - 1}") == (SearchedBy.INDEX, 1)
