"""What waiting costs the database: one worker of a broker asks for all, and seldom."""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest

from catmq_site.background.loop_threads import Loop, LoopThreads, NodeLoops
from catmq_site.background.table import _heads_loop
from messagestore.engine.messages import NewMessage
from messagestore.heads import head_watcher, shared_heads
from messagestore.heads.head_watcher import NodeWatcher
from messagestore.heads.heads import HeadBoard, board
from messagestore.heads.shared_heads import now_ms
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.tables import message_sql
from messagestore.tables.shapes import NewBatch
from messagestore.topology import topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.config import config
from tests.support.mariadb import MariaDB
from tests.support.tampering import plant
from tests.support.waiting import until

ACTOR = command("test")
WAITERS = 200
HEARD_WITHIN_S = 1.0  # usually 50 ms; a circuit opens after 2 s


@pytest.fixture
def queues(node: str) -> list[int]:
    """Four queues on a node."""
    return [
        one.queue.queue
        for one in topics.create(name="orders", queues=4, actor=ACTOR).queues
    ]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> tuple[HeadBoard, HeadBoard]:
    """The boards of two workers of one broker."""
    memory = mmap.mmap(-1, shared_heads.SIZE)
    boards = HeadBoard(), HeadBoard()
    for number, one in enumerate(boards, 1):
        monkeypatch.setattr(os, "getpid", lambda number=number: number)
        one.share(memory)
    monkeypatch.undo()
    monkeypatch.setattr("messagestore.heads.durability.board", boards[0])
    return boards


def selects(server: MariaDB) -> int:
    """How many SELECTs the server was asked."""
    return int(server.execute("SHOW GLOBAL STATUS LIKE 'Com_select'")[0][1])


def test_200_waiting_pulls_cost_less_than_25_queries_a_second(
    mariadb: MariaDB, queues: list[int], workers: tuple[HeadBoard, HeadBoard]
) -> None:
    node_id = snapshot.find_queue(queues[0]).node_id
    watchers = [NodeWatcher(node_id, board) for board in workers]
    with node_pools.node_of(queues[0]).reading():
        pass  # a session is made, which asks the server what it is
    with ExitStack() as stack:
        for number in range(WAITERS):
            stack.enter_context(workers[number % 2].watch(1, {queues[number % 4]: 0}))
        asked, begun = selects(mariadb), time.monotonic()

        def watched_for_a_second() -> bool:
            for one in watchers:
                one.run_once()
            return time.monotonic() > begun + 1

        until(watched_for_a_second, every_s=config.head_interval_ms / 1000)
        asked, took = selects(mariadb) - asked, time.monotonic() - begun
    assert 1 <= asked <= 25 * took, "both workers together; a single one may ask no more"


def test_one_worker_asks_for_what_another_waits_for(
    queues: list[int], workers: tuple[HeadBoard, HeadBoard]
) -> None:
    leader, follower = workers
    node_id = snapshot.find_queue(queues[0]).node_id
    watching, following = NodeWatcher(node_id, leader), NodeWatcher(node_id, follower)
    with leader.watch(1, {queues[0]: 0}), follower.watch(2, {queues[1]: 0}) as waiter:
        watching.run_once()
        following.run_once()
        # A send of another broker: nobody here noted it.
        publish(
            topic="orders",
            messages=[NewMessage(body=b"", queue=queues[1])],
            batch_id=None,
            actor=ACTOR,
        )
        until(lambda: watching.run_once() or leader.durable_head(queues[1]) == 1)
        assert not waiter.flag.is_set()
        follower.listen()
        assert waiter.flag.is_set()


def test_a_head_that_moved_without_looking_new_is_found_within_a_second(
    queues: list[int], workers: tuple[HeadBoard, HeadBoard]
) -> None:
    watching = NodeWatcher(snapshot.find_queue(queues[0]).node_id, workers[0])
    with workers[0].watch(1, {queues[0]: 0}):
        watching.run_once()
        store_elsewhere(queues[0])
        # As after a jump of the node's clock, or at the end of a commit that took long.
        plant(
            queues[0],
            "UPDATE queue_head SET last_stored_at = last_stored_at - INTERVAL 1 HOUR",
        )
        begun = time.monotonic()
        until(lambda: watching.run_once() or workers[0].durable_head(queues[0]) == 1)
        assert time.monotonic() - begun < head_watcher.WHOLE_S + HEARD_WITHIN_S


@pytest.fixture
def alone(queues: list[int], workers: tuple[HeadBoard, HeadBoard]) -> Iterator[None]:
    """The loops of both workers of a broker beside which no other lives."""
    node_id = snapshot.find_queue(queues[0]).node_id
    watchers = [NodeWatcher(node_id, one, is_alone=lambda: True) for one in workers]
    every_s = config.head_interval_ms / 1000
    loops = LoopThreads(
        [Loop(str(one), every_s, one.run_once, one.leave) for one in watchers]
    )
    loops.start()
    yield
    for one in workers:
        one.wake_all()
    loops.stop()


def test_a_broker_that_is_alone_asks_a_node_twice_a_second(
    mariadb: MariaDB, queues: list[int], workers: tuple[HeadBoard, HeadBoard], alone: None
) -> None:
    with workers[0].watch(1, {queues[0]: 0}), workers[1].watch(2, {queues[1]: 0}):
        until(lambda: node_leader(workers[0], queues[0]) != 0)
        begun, asked = time.monotonic(), selects(mariadb)
        until(lambda: time.monotonic() > begun + 2, every_s=0.1)
        asked, took = selects(mariadb) - asked, time.monotonic() - begun
    assert took / head_watcher.ALONE_S / 2 <= asked <= took / head_watcher.ALONE_S + 2


def test_a_broker_that_is_alone_hears_of_what_a_job_stored_also_after_its_watcher_left(
    queues: list[int], workers: tuple[HeadBoard, HeadBoard], alone: None
) -> None:
    node_id = snapshot.find_queue(queues[0]).node_id
    with workers[0].watch(1, {queues[0]: 0}):
        until(lambda: node_leader(workers[0], queues[0]) == 1)
        with workers[1].watch(2, {queues[1]: 0}):
            for head in (1, 2, 3):
                begun = time.monotonic()
                store_elsewhere(queues[1])
                until(lambda head=head: workers[1].durable_head(queues[1]) == head)
                assert time.monotonic() - begun < head_watcher.ALONE_S + HEARD_WITHIN_S
                # as a worker whose clients are gone, or which stops
                workers[0].shared.leave(node_id)


def node_leader(board: HeadBoard, queue: int) -> int:
    """The worker that watches the node of a queue, 0 before the first one does."""
    return board.shared._cells[1 + 3 * snapshot.find_queue(queue).node_id]


def test_a_frozen_node_delays_news_of_no_other_node(
    ill: MariaDB, make_node: Callable[..., str], watched: None
) -> None:
    with ill.schema() as schema:
        account = {
            "host": "127.0.0.1",
            "port": ill.port,
            "username": "catmq",
            "password": ill.password,
        }
        make_node("ill", engine="mysql", database=schema, **account)
        make_node("well")
        made = topics.create(name="orders", queues=2, actor=ACTOR)
        snapshot.refresh()
        queue_of = {one.queue.node: one.queue.queue for one in made.queues}
        loops = LoopThreads([NodeLoops("heads", head_watcher.nodes, _heads_loop)])
        with board.watch(1, dict.fromkeys(queue_of.values(), 0)) as waiter:
            loops.start()
            until(
                lambda: (
                    board.shared.wanted(queue_of.values(), now_ms()) == {*queue_of.values()}
                )
            )
            os.kill(ill.pid, signal.SIGSTOP)
            try:
                for head in (1, 2, 3):  # while the other node is being found out, and after
                    store_elsewhere(queue_of["well"])
                    begun = time.monotonic()
                    until(
                        lambda head=head: board.durable_head(queue_of["well"]) == head,
                        limit_s=20,
                    )
                    assert time.monotonic() - begun < HEARD_WITHIN_S
                assert waiter.flag.is_set()
                until(lambda: node_pools.unreachable_nodes() == ["ill"], limit_s=20)
            finally:
                os.kill(ill.pid, signal.SIGCONT)
        loops.stop()
        node_pools.evict_all()


def store_elsewhere(queue: int) -> None:
    """Stores a message as another broker does: nobody here hears of it."""
    node = node_pools.node_of(queue)
    batch = NewBatch(uuid4().bytes, b"", [NewMessage(body=b"x")], "other")
    with node.writing() as session:
        message_sql.insert_messages(
            session, queue=queue, node_epoch=node.info.epoch, batches=[batch]
        )
