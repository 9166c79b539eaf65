"""An index build that is interrupted: by kill -9 of the server, and by retention and senders
that need the table meanwhile.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from messagestore.engine.messages import MessageSearch, NewMessage
from messagestore.engine.mysql_session import Session
from messagestore.heads import partitions
from messagestore.inspect import search
from messagestore.inspect.search import SearchedBy, TimeRange
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.tables import partition_sql, queue_sql
from messagestore.topology import key_indexes, topics
from messagestore.topology.key_indexes import ChangedQueue
from metadata.actors import command
from metadata.cache import snapshot
from metadata.errors import NodeUnavailable
from metadata.topics import key_index_rows, topic_rows
from tests.support.environment import SERVER, free_port
from tests.support.mariadb import NO_BINLOG, MariaDB, is_alive, start
from tests.support.tampering import look
from tests.support.waiting import until

ACTOR = command("test")
ROWS = 262_144  # below the end of the last partition, with long keys: enough for a build of seconds
ADD_ROWS = """INSERT INTO {table} (msg_offset, msg_key, body, producer, stored_at)
    SELECT msg_offset + {shift}, CONCAT(SUBSTRING(SHA2(msg_offset + {shift}, 512), 1, 100), 'k'),
           body, producer, stored_at FROM {table}"""
REBUILDING = """SELECT COUNT(*) FROM information_schema.PROCESSLIST
    WHERE INFO LIKE 'ALTER TABLE message%REBUILD%'"""
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
    # Not dropped: a server that was killed may leave a file that keeps it from that.
    schema = "killed"
    server.execute(f"CREATE DATABASE {schema} CHARACTER SET utf8mb4")
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


def half_build(server: MariaDB, queue: int, *, defined: bool) -> None:
    """Leave a table as a server that is killed during ADD INDEX may leave it: with the index
    in the definition, and without it in the partitions. The reverse, as after DROP INDEX,
    unless `defined`.

    MariaDB keeps the definition in a file, so that of another table makes the difference.
    """
    schema = server.execute(
        "SELECT TABLE_SCHEMA FROM information_schema.TABLES WHERE TABLE_NAME = %s",
        [f"message_{queue}"],
    )[0][0]
    server.execute(f"CREATE TABLE {schema}.twin LIKE {schema}.message_{queue}")
    with_index = "twin" if defined else f"message_{queue}"
    server.execute(f"CREATE INDEX message_key ON {schema}.{with_index} (msg_key)")
    server.stop()
    (twin,) = server.directory.rglob(f"{schema}/twin.frm")
    shutil.copyfile(twin, twin.with_name(f"message_{queue}.frm"))
    server.start()
    until(lambda: can_send("after the start"), limit_s=60)


def can_send(key: str) -> bool:
    try:
        send(key)
    except NodeUnavailable:
        return False
    return True


def searched(key: str) -> tuple[SearchedBy, int]:
    wanted = MessageSearch(key=key)
    result = search.search_messages(
        topic="orders", wanted=wanted, times=TimeRange(), actor=ACTOR
    )
    return result.by, len(result.messages)


def test_kill_9_of_the_server_is_repaired_by_the_next_run(
    server: MariaDB, queue: int, building: Future[ChangedQueue]
) -> None:
    os.kill(server.pid, signal.SIGKILL)
    assert building.result(60).problem
    until(lambda: not is_alive(server), limit_s=10)
    server.start()
    until(lambda: can_send("before the repair"), limit_s=60)
    assert searched("first") == (SearchedBy.RANGE, 1)

    until(lambda: not key_indexes.build(actor=ACTOR), limit_s=120, every_s=0.5)

    snapshot.refresh()
    assert searched("before the repair") == (SearchedBy.INDEX, 1)
    assert searched("first") == (SearchedBy.INDEX, 1)
    send("after the crash")
    assert searched("after the crash") == (SearchedBy.INDEX, 1)


@pytest.mark.skipif(bool(SERVER), reason="needs the files of the installed MariaDB")
def test_a_table_with_the_index_only_in_its_definition_is_used_and_repaired(
    server: MariaDB, queue: int
) -> None:
    key_index_rows.begin_change(queue=queue)
    half_build(server, queue, defined=True)

    assert searched("first") == (SearchedBy.RANGE, 1)
    # The state of a node that was restored from a copy of that time.
    key_index_rows.end_change(queue=queue, indexed=True)
    snapshot.refresh()
    assert searched("first") == (SearchedBy.RANGE, 1)
    with node_pools.node_of(queue).maintaining() as session:
        assert queue_sql.has_key_index(session, queue=queue)
        lacking = partition_sql.find_partitions_without_index(session, queue=queue)
        names = [p.name for p in partition_sql.list_partitions(session, queue=queue)]
        assert lacking == names
        assert partitions.extend(queue, urgent=False, ahead=20) > 0
        partition_sql.drop_partition(session, queue=queue, name=last_partition(queue))

    (change,) = key_indexes.build(actor=ACTOR, check=True)
    snapshot.refresh()

    assert (change.problem, change.rebuilt) == ("", len(names))
    for key in ("first", "after the start"):
        assert searched(key) == (SearchedBy.INDEX, 1)
    assert key_indexes.build(actor=ACTOR) == []


def last_partition(queue: int) -> str:
    with node_pools.node_of(queue).reading() as session:
        return partition_sql.list_partitions(session, queue=queue)[-1].name


@pytest.mark.skipif(bool(SERVER), reason="needs the files of the installed MariaDB")
@pytest.mark.parametrize("wanted", [True, False])
def test_an_index_that_is_left_only_in_the_partitions_is_removed_or_completed(
    server: MariaDB, queue: int, wanted: bool
) -> None:
    key_index_rows.begin_change(queue=queue)
    half_build(server, queue, defined=False)
    topic_rows.update(name="orders", settings={"key_index": wanted}, actor=ACTOR)
    snapshot.refresh()
    assert searched("after the start") == (SearchedBy.RANGE, 1)

    (change,) = key_indexes.build(actor=ACTOR)
    snapshot.refresh()

    assert (change.problem, change.rebuilt > 0) == ("", True)
    expected = SearchedBy.INDEX if wanted else SearchedBy.RANGE
    for key in ("first", "after the start"):
        assert searched(key) == (expected, 1)
    left = server.execute(
        "SELECT COUNT(*) FROM information_schema.INNODB_SYS_INDEXES WHERE name = 'message_key'"
        " AND table_id IN (SELECT table_id FROM information_schema.INNODB_SYS_TABLES"
        f" WHERE name LIKE '%/message\\_{queue}#P#%')"
    )
    assert (left[0][0] > 0) is wanted


@pytest.mark.skipif(bool(SERVER), reason="needs the files of the installed MariaDB")
def test_kill_9_of_the_server_during_a_repair_is_repaired_as_well(
    server: MariaDB, queue: int
) -> None:
    key_index_rows.begin_change(queue=queue)
    half_build(server, queue, defined=True)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(build)
        until(lambda: server.execute(REBUILDING)[0][0] == 1, limit_s=60, every_s=0.001)
        os.kill(server.pid, signal.SIGKILL)
        assert future.result(60).problem
    until(lambda: not is_alive(server), limit_s=10)
    server.start()
    until(lambda: can_send("after the crash"), limit_s=60)

    until(lambda: not key_indexes.build(actor=ACTOR), limit_s=120, every_s=0.5)

    snapshot.refresh()
    for key in ("first", "after the start", "after the crash"):
        assert searched(key) == (SearchedBy.INDEX, 1)
    count = "SELECT COUNT(*) FROM message_{q} FORCE INDEX (PRIMARY)"
    assert look(queue, count) == [(ROWS + 2,)]


def test_new_partitions_wait_a_bounded_time_for_a_build_and_follow_it(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, altered, released = queue_sql.add_key_index, threading.Event(), threading.Event()

    def add_and_wait(session: Session, *, queue: int) -> None:
        add(session, queue=queue)
        altered.set()
        assert released.wait(60)

    monkeypatch.setattr(queue_sql, "add_key_index", add_and_wait)
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(build)
        try:
            assert altered.wait(60)
            began_at = time.monotonic()
            with pytest.raises(NodeUnavailable, match="is locked by another session"):
                partitions.extend(queue, urgent=False, ahead=20)
            assert time.monotonic() - began_at < 10
        finally:
            released.set()
        assert building.result(120).problem == ""
    assert partitions.extend(queue, urgent=False, ahead=20) > 0


def test_writers_do_not_fail_during_the_build(
    queue: int, building: Future[ChangedQueue]
) -> None:
    sent = 0
    while True:
        send(f"meanwhile {sent}")
        if building.done():
            break
        sent += 1
    assert building.result().problem == ""
    snapshot.refresh()
    for number in {0, sent}:
        assert searched(f"meanwhile {number}") == (SearchedBy.INDEX, 1)
