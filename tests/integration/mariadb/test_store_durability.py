"""A server without binary log is killed while a message is visible whose redo log is not on
disk.

The window is forced: one commit sits in a slow sync of the log, so that the next one,
already visible to everybody, has not even been written to the file. What was served then
would be given to another message.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from messagestore.consume import group_lag, positions, pull
from messagestore.consume.positions import Claim
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.engine import batch_ids
from messagestore.engine.messages import MessageSearch, NewMessage
from messagestore.heads import durability
from messagestore.inspect import browse, search
from messagestore.inspect.search import TimeRange
from messagestore.pool import node_pools
from messagestore.produce import group_commit
from messagestore.produce.publish import publish
from messagestore.tables import queue_sql
from messagestore.topology import membership, subscriptions, topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.db import consumer_ids
from metadata.errors import CatmqError, NodeUnavailable
from metadata.groups import groups
from metadata.membership import consumers
from tests.support.environment import IS_MYSQL, free_port
from tests.support.mariadb import NO_BINLOG, SMALL, MariaDB, is_alive, start
from tests.support.slowsync import SlowSync, slow_disk
from tests.support.waiting import until

ACTOR = command("test")
OWN_THREAD = "SELECT tid FROM information_schema.processlist WHERE id = CONNECTION_ID()"
SLOW_MS = 15_000  # longer than the test needs the window


@pytest.fixture
def disk() -> Iterator[SlowSync]:
    """The disk of the test's server."""
    with slow_disk() as disk:
        yield disk


@pytest.fixture
def server(disk: SlowSync) -> Iterator[MariaDB]:
    """A server of this test's own, without binary log, on that disk."""
    server = start(disk.home, port=free_port(), options=NO_BINLOG, environ=disk.environ)
    yield server
    disk.forget()
    server.stop()


@pytest.fixture
def background(disk: SlowSync) -> Iterator[Callable[..., Future[Any]]]:
    """Runs a call beside the test; in the end the disk is fast again, so that none hangs."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit
        disk.set(0)


class Reader:
    """The only member of group `billing`, which reads the only queue of topic `orders`."""

    def __init__(self, queue: int) -> None:
        joined = membership.join(
            group="billing", name="one", incarnation=str(uuid4()), actor=ACTOR
        )
        self.id = consumer_ids.check(joined.consumer_id)
        (assigned,) = consumers.heartbeat(consumer=self.id, generation=0, owned=[]).assigned
        self.queue, self.epoch = queue, assigned.epoch
        (acquired,) = positions.acquire(consumer=self.id, queues=[Claim(queue, self.epoch)])
        assert acquired.state == "ok"

    def pull(self, offset: int) -> PulledQueue:
        asked = [PullQueue(self.queue, self.epoch, offset)]
        return pull.pull(
            consumer=self.id, queues=asked, max_messages=10, max_bytes=1 << 20
        )[0]


def send(body: bytes, batch_id: UUID | None = None) -> int:
    (fate,) = publish(
        topic="orders", messages=[NewMessage(body=body)], batch_id=batch_id, actor=ACTOR
    )
    if isinstance(fate, CatmqError):
        raise fate
    return fate.offset


def settle(future: Future[Any]) -> Any:
    """What a call beside the test came to; an error of the product is an outcome, too."""
    try:
        return future.result(60)
    except CatmqError as error:
        return error


@pytest.fixture
def queue(server: MariaDB, make_node: Callable[..., str]) -> Iterator[int]:
    """The queue of topic `orders` on that server, read by group `billing`; it holds one
    message.
    """
    with server.schema() as schema:
        account = {
            "host": "127.0.0.1",
            "port": server.port,
            "username": "catmq",
            "password": server.password,
        }
        make_node("slow", engine="mysql", database=schema, **account)
        queue = topics.create(name="orders", queues=1, actor=ACTOR).queues[0].queue.queue
        groups.create(name="billing", actor=ACTOR)
        subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
        snapshot.refresh()
        send(b"first")
        server.execute(f"CREATE TABLE {schema}.other (id INT PRIMARY KEY AUTO_INCREMENT)")
        yield queue


def head(server: MariaDB, queue: int) -> int:
    """The head that everybody sees."""
    schema = node_pools.node_of(queue).info.database
    return int(
        server.execute(f"SELECT head FROM {schema}.queue_head WHERE queue_id = {queue}")[0][
            0
        ]
    )


def busy(server: MariaDB) -> int:
    """How many connections of the product run something: the send, the barrier, the repeat."""
    running = "command = 'Query' AND id <> CONNECTION_ID() AND info NOT LIKE '%INTO other%'"
    return int(
        server.execute(
            f"SELECT COUNT(*) FROM information_schema.processlist WHERE {running}"
        )[0][0]
    )


def hold_up_the_log(server: MariaDB, disk: SlowSync, queue: int) -> None:
    """Somebody commits until one of these commits syncs the log itself, which takes long.

    On MySQL a thread of the server writes and syncs it, so any commit will do.
    """
    with closing(server.connect(db=node_pools.node_of(queue).info.database)) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT 0" if IS_MYSQL else OWN_THREAD)
        disk.set(SLOW_MS, thread=cursor.fetchone()[0])
        while disk.delay_ms() > 0:
            cursor.execute("INSERT INTO other VALUES (NULL)")


def visible_only(
    server: MariaDB, disk: SlowSync, queue: int, background: Callable[..., Future[Any]]
) -> tuple[int, UUID, list[Future[Any]]]:
    """Sends a message that everybody sees but no disk has: its offset, batch id, the calls
    under way.
    """
    for _ in range(10):
        offset, batch_id = head(server, queue), batch_ids.new()
        calls = [background(hold_up_the_log, server, disk, queue)]
        until(lambda: disk.inside() > 0)
        calls.append(background(send, b"lost", batch_id))
        try:
            until(lambda offset=offset: head(server, queue) == offset + 1, limit_s=2)  # type: ignore[misc]
        except AssertionError:  # that sync was a checkpoint's, which holds up everybody
            disk.set(0)
            for call in calls:
                settle(call)
        else:
            return offset, batch_id, calls
    raise AssertionError("every sync was a checkpoint's")


def kill(server: MariaDB) -> None:
    os.kill(server.pid, signal.SIGKILL)
    # it stays as a zombie where process 1 waits for nobody
    until(lambda: not is_alive(server), limit_s=10)


def answers(queue: int) -> bool:
    """Return True if the queue's node is asked, and answers."""
    try:
        with node_pools.node_of(queue).reading() as session:
            return queue_sql.read_head(session, queue=queue) is not None
    except NodeUnavailable:
        return False


def test_a_message_that_a_crash_may_take_back_is_not_served(
    server: MariaDB, disk: SlowSync, queue: int, background: Callable[..., Future[Any]]
) -> None:
    reader = Reader(queue)
    assert [message.body for message in reader.pull(0).messages] == [b"first"]
    offset, batch_id, calls = visible_only(server, disk, queue, background)
    pulling = background(reader.pull, offset)
    asking = background(group_lag.group_offsets, group="billing", actor=ACTOR)
    at = {"topic": "orders", "queue": queue, "actor": ACTOR}
    looks: list[Callable[[], Any]] = [
        lambda: browse.read_page(offset=offset, limit=10, **at),
        lambda: browse.read_message(
            topic="orders", message_id=f"{queue}-{offset}", actor=ACTOR
        ),
        lambda: search.search_messages(wanted=MessageSearch(), times=TimeRange(), **at),
    ]
    looking = [background(look) for look in looks]
    barrier = durability.barrier_of(node_pools.node_of(queue).info.id)
    # All saw the message, and one leads the barrier that the others wait for, unless they
    # answered already.
    until(
        lambda: (
            barrier.waiting() == 4 or any(one.done() for one in (pulling, asking, *looking))
        )
    )
    # the repeat comes through another worker, where nobody sends
    group_commit._coalescers.clear()
    repeating = background(send, b"lost", batch_id)
    # a moment for the repeat to get somewhere; nothing depends on it
    with suppress(AssertionError):
        until(lambda: busy(server) + pulling.done() == 3 or repeating.done(), limit_s=1)
    kill(server)
    served, receipt, (known,), _ = map(settle, (pulling, repeating, asking, calls[1]))
    for seen in map(settle, looking):
        assert isinstance(seen, CatmqError) or all(
            one.offset < offset for one in seen.messages
        )
    assert calls[0].exception() is not None, "its commit was not acknowledged either"
    assert isinstance(served, CatmqError) or served.messages == []
    assert known.head in (None, offset), "nor is it counted"
    assert isinstance(receipt, CatmqError), "nor was it acknowledged to who sent it again"

    disk.forget()
    server.start()
    assert head(server, queue) == offset, "the crash took it back"
    # the pause between two probes has grown meanwhile
    until(lambda: answers(queue), limit_s=30)

    assert send(b"second") == offset, "its offset goes to another message"
    assert [message.body for message in reader.pull(offset).messages] == [b"second"], (
        "which nobody skips"
    )


def test_a_synced_binary_log_needs_no_barrier(
    tmp_path: Path, make_node: Callable[..., str]
) -> None:
    options = [*SMALL, "--log-bin", "--sync-binlog=1", "--server-id=1"]
    server = start(tmp_path / "binlog", port=free_port(), options=options)
    try:
        account = {
            "host": "127.0.0.1",
            "port": server.port,
            "username": "catmq",
            "password": server.password,
        }
        server.execute("CREATE DATABASE node CHARACTER SET utf8mb4")
        make_node("synced", engine="mysql", database="node", **account)
        topics.create(name="orders", queues=1, actor=ACTOR)
        queue = snapshot.find_topic("orders").queues[0]
        durability.confirm(node_id=snapshot.find_queue(queue).node_id, heads={queue: 5})
        assert server.execute("SELECT COUNT(*) FROM node.node_pulse")[0][0] == 0
        server.execute("SET GLOBAL sync_binlog = 0")
        node_pools.node_of(queue).discard()
        durability.confirm(node_id=snapshot.find_queue(queue).node_id, heads={queue: 6})
        assert server.execute("SELECT SUM(n) FROM node.node_pulse")[0][0] == 1
    finally:
        server.stop()
