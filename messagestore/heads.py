"""Who waits for which queue, and the heads this process knows.

A waiting pull registers the queues and offsets it waits behind. It is woken by a send in the same
process, by the head watcher (`HeadBoard.run_once`, a loop of every worker) or by a change of its
group. A waiter holds no database connection. The watcher asks only nodes somebody waits for, and
never spends more than a 25th of its time on one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping

from messagestore import connections, floors, tables
from metadata import snapshot
from metadata.errors import CatmqError

log = logging.getLogger(__name__)
PACE = 25
RETRY_S = 1.0
IDLE_S = 1.0


class Waiter:
    """One waiting pull: wakes when a head passes an offset, its group changes, or everything stops."""

    def __init__(self, board: HeadBoard, group_id: int, offsets: Mapping[int, int]) -> None:
        self.group_id = group_id
        self.offsets = offsets
        self.event = threading.Event()
        self._board = board

    def __enter__(self) -> Waiter:
        self._board.add(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._board.remove(self)

    def wait(self, timeout_s: float) -> bool:
        """Whether something happened within the time."""
        return self.event.wait(timeout_s)


class HeadBoard:
    """The heads and waiters of one process; safe for all its threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._heads: dict[int, int] = {}
        self._by_queue: dict[int, set[Waiter]] = {}
        self._waiters: set[Waiter] = set()
        self._somebody = threading.Event()
        self._not_before: dict[int, float] = {}
        self._failing: set[int] = set()

    def known(self, queue: int) -> int:
        """The highest head seen of a queue, 0 if none."""
        return self._heads.get(queue, 0)

    def watch(self, group_id: int, offsets: Mapping[int, int]) -> Waiter:
        """A waiter behind {queue: offset}, to be used as a context manager."""
        return Waiter(self, group_id, offsets)

    def waiters(self) -> int:
        """How many pulls wait."""
        return len(self._waiters)

    def note(self, queue: int, head: int) -> None:
        """Records a head and wakes those who wait behind it."""
        with self._guard:
            if head <= self._heads.get(queue, -1):
                return
            self._heads[queue] = head
            floors.seen(queue, head)
            for waiter in self._by_queue.get(queue, ()):
                if waiter.offsets[queue] < head:
                    waiter.event.set()

    def add(self, waiter: Waiter) -> None:
        """Registers a waiter; one that has missed a head is woken at once."""
        self._somebody.set()
        with self._guard:
            self._waiters.add(waiter)
            for queue, offset in waiter.offsets.items():
                self._by_queue.setdefault(queue, set()).add(waiter)
                if self._heads.get(queue, -1) > offset:
                    waiter.event.set()

    def remove(self, waiter: Waiter) -> None:
        """Forgets a waiter."""
        with self._guard:
            self._waiters.discard(waiter)
            for queue in waiter.offsets:
                waiting = self._by_queue.get(queue, set())
                waiting.discard(waiter)
                if not waiting:
                    self._by_queue.pop(queue, None)

    def wake_group(self, group_id: int) -> None:
        """Wakes the pulls of a group: its generation or state changed."""
        self._wake(waiter for waiter in self._snapshot() if waiter.group_id == group_id)

    def wake_all(self) -> None:
        """Wakes every pull, and the watcher: the process is about to stop."""
        self._somebody.set()
        self._wake(self._snapshot())

    def _snapshot(self) -> list[Waiter]:
        with self._guard:
            return list(self._waiters)

    @staticmethod
    def _wake(waiters: Iterable[Waiter]) -> None:
        for waiter in waiters:
            waiter.event.set()

    def run_once(self) -> None:
        """Reads the heads somebody waits for, node by node; if nobody does, waits a moment for somebody."""
        if not self._waiters and not self._somebody.wait(IDLE_S):
            return
        self._somebody.clear()
        for node_id, queues in self._wanted().items():
            now = time.monotonic()
            if now < self._not_before.get(node_id, 0.0):
                continue
            try:
                self._read(node_id, queues)
            except CatmqError as error:
                self._fails(node_id, error)
                continue
            self._failing.discard(node_id)
            self._not_before[node_id] = time.monotonic() + PACE * (time.monotonic() - now)

    def _wanted(self) -> dict[int, list[int]]:
        known = snapshot.current().queues
        with self._guard:
            waiting = [queue for queue in self._by_queue if queue in known]
            if len(self._heads) > 2 * len(known) + 1000:
                self._heads = {queue: head for queue, head in self._heads.items() if queue in known}
        wanted: dict[int, list[int]] = {}
        for queue in waiting:
            wanted.setdefault(known[queue].node_id, []).append(queue)
        return wanted

    def _read(self, node_id: int, queues: list[int]) -> None:
        everything = sum(queue.node_id == node_id for queue in snapshot.current().queues.values())
        with connections.node(node_id).reading() as session:
            heads = tables.read_heads(session, queues=None if 2 * len(queues) > everything else queues)
        for queue in queues:
            if queue in heads:
                self.note(queue, heads[queue])

    def _fails(self, node_id: int, error: CatmqError) -> None:
        self._not_before[node_id] = time.monotonic() + RETRY_S
        if node_id not in self._failing:
            log.warning("Heads of node %d cannot be read: %s", node_id, error.detail)
        self._failing.add(node_id)


board = HeadBoard()
