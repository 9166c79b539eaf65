"""What waiting costs the database: one worker of a broker asks for all, and seldom."""

from __future__ import annotations

import mmap
import os
import time
from contextlib import ExitStack

import pytest

from messagestore import connections, shared_heads, topics, watcher
from messagestore.heads import HeadBoard
from messagestore.messages import NewMessage
from messagestore.publish import publish
from messagestore.watcher import HeadWatcher
from metadata.actors import command
from tests.support.mariadb import MariaDB
from tests.support.waiting import until

ACTOR = command("test")
WAITERS = 200


@pytest.fixture
def queues(node: str) -> list[int]:
    """Four queues on a node."""
    return [one.queue.queue for one in topics.create(name="orders", queues=4, actor=ACTOR).queues]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> tuple[HeadBoard, HeadBoard]:
    """The boards of two workers of one broker."""
    memory = mmap.mmap(-1, shared_heads.SIZE)
    boards = HeadBoard(), HeadBoard()
    for number, board in enumerate(boards, 1):
        monkeypatch.setattr(os, "getpid", lambda number=number: number)
        board.share(memory)
    monkeypatch.undo()
    monkeypatch.setattr("messagestore.durability.board", boards[0])
    return boards


def selects(server: MariaDB) -> int:
    """How many SELECTs the server was asked."""
    return int(server.execute("SHOW GLOBAL STATUS LIKE 'Com_select'")[0][1])


def test_200_waiting_pulls_cost_less_than_25_queries_a_second(
    mariadb: MariaDB, queues: list[int], workers: tuple[HeadBoard, HeadBoard]
) -> None:
    watchers = [HeadWatcher(board) for board in workers]
    with connections.node_of(queues[0]).reading():
        pass  # a session is made, which asks the server what it is
    with ExitStack() as stack:
        for number in range(WAITERS):
            stack.enter_context(workers[number % 2].watch(1, {queues[number % 4]: 0}))
        asked, begun = selects(mariadb), time.monotonic()
        while time.monotonic() < begun + 2:
            for one in watchers:
                one.run_once()
            time.sleep(watcher.EVERY_S)
        asked, took = selects(mariadb) - asked, time.monotonic() - begun
    assert 1 <= asked <= 25 * took, "both workers together; a single one may ask no more"


def test_one_worker_asks_for_what_another_waits_for(
    queues: list[int], workers: tuple[HeadBoard, HeadBoard]
) -> None:
    leader, follower = workers
    watching, following = HeadWatcher(leader), HeadWatcher(follower)
    with leader.watch(1, {queues[0]: 0}), follower.watch(2, {queues[1]: 0}) as waiter:
        watching.run_once()
        following.run_once()
        # A send of another broker: nobody here noted it.
        publish(topic="orders", messages=[NewMessage(body=b"", queue=queues[1])], batch_id=None, actor=ACTOR)
        until(lambda: watching.run_once() or leader.known(queues[1]) == 1)
        assert not waiter.event.is_set()
        following.run_once()
        assert waiter.event.is_set()
