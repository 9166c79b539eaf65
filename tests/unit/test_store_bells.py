"""Workers of one broker wake each other when they raise a head: real processes, and no look
in between.
"""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from messagestore.heads import bells, shared_heads
from messagestore.heads.bells import Bells
from messagestore.heads.heads import HeadBoard
from tests.support.waiting import until

LONG_S = 60.0  # no look comes to help
WITHIN_S = 2.0  # usually less than a millisecond


class Broker:
    """What a master makes, and the workers that it forks."""

    def __init__(self) -> None:
        self.memory, self.bells = mmap.mmap(-1, shared_heads.SIZE), Bells(4)
        self.told = mmap.mmap(-1, 1)

    def board(self) -> HeadBoard:
        """The board of a worker; called in it."""
        board = HeadBoard()
        board.share(self.memory, self.bells)
        return board

    @contextmanager
    def worker(self, run: Callable[[HeadBoard], object]) -> Iterator[int]:
        """A worker that does something and then waits for its end."""
        pid = os.fork()
        if pid == 0:
            try:
                run(self.board())
                self.told[0] = 1
                time.sleep(LONG_S)
            finally:
                os._exit(1)
        try:
            yield pid
        finally:
            kill(pid)


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        return  # a test has done it


@pytest.fixture
def broker() -> Broker:
    return Broker()


@contextmanager
def listening(board: HeadBoard) -> Iterator[None]:
    """The loop of a worker, without the look that heals what was lost."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            board.listen(LONG_S)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        board.wake_all()
        thread.join(WITHIN_S)
        assert not thread.is_alive(), "a worker that stops does not wait for the next look"


def test_a_waiter_is_woken_by_a_send_in_another_process(broker: Broker) -> None:
    go = mmap.mmap(-1, 1)

    def send(board: HeadBoard) -> None:
        until(lambda: go[0] == 1)
        board.note(7, 6)

    mine = broker.board()
    with broker.worker(send), mine.watch(1, {7: 5}) as waiter, listening(mine):
        until(lambda: broker.bells.states[0] == bells.LISTENS)
        go[0] = 1
        assert waiter.wait(WITHIN_S)
        assert mine.durable_head(7) == 6


def test_every_send_wakes_whoever_waits_anew(broker: Broker) -> None:
    mine, other = broker.board(), broker.board()
    with listening(mine):
        for head in range(1, 50):
            with mine.watch(1, {7: head - 1}) as waiter:
                other.note(7, head)
                assert waiter.wait(WITHIN_S)


def test_the_place_of_a_killed_worker_is_taken_again_and_rung(broker: Broker) -> None:
    with broker.worker(lambda board: board.listen()) as pid:
        until(lambda: broker.told[0] == 1)
        broker.bells.states[0] = bells.LISTENS
        other = broker.board()
        kill(pid)
    other.note(7, 1)
    broker.told[0] = 0

    def wait(board: HeadBoard) -> None:
        with board.watch(1, {7: 5}) as waiter, listening(board):
            assert waiter.wait(WITHIN_S)

    with broker.worker(wait):
        until(
            lambda: (
                broker.bells.states[0] == bells.LISTENS
                and other.shared.wanted([7], shared_heads.now_ms()) == {7}
            )
        )
        other.note(7, 6)
        until(lambda: broker.told[0] == 1, limit_s=WITHIN_S)


def test_a_place_is_taken_by_one_process_only(broker: Broker) -> None:
    mine = broker.bells.take()
    with broker.worker(lambda board: None):
        until(lambda: broker.told[0] == 1)
        assert [mine.place, broker.bells.take().place] == [0, 2], (
            "the worker has the place between"
        )


def test_nobody_is_rung_who_does_not_listen_or_for_what_nobody_waits(
    broker: Broker,
) -> None:
    mine, other = broker.board(), broker.board()
    with mine.watch(1, {7: 5}):
        other.note(7, 6)
        assert not is_rung(broker, 0), "nobody listens yet"
        broker.bells.states[0] = bells.LISTENS
        other.note(8, 9)
        assert not is_rung(broker, 0), "nobody waits for that queue"
        other.note(7, 7)
        assert is_rung(broker, 0)
        other.note(7, 8)
        assert not is_rung(broker, 0), "it was rung already"


def test_a_worker_without_a_place_looks_often() -> None:
    memory, few = mmap.mmap(-1, shared_heads.SIZE), Bells(1)
    mine, other = HeadBoard(), HeadBoard()
    other.share(memory, few)
    mine.share(memory, few)
    with mine.watch(1, {7: 5}) as waiter, listening(mine):
        other.note(7, 6)
        assert waiter.wait(WITHIN_S)


def is_rung(broker: Broker, place: int) -> bool:
    """Return True if a place was rung, and forget it."""
    try:
        return os.eventfd_read(broker.bells.files[place]) > 0
    except BlockingIOError:
        return False
