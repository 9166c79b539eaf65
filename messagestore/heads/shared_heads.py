"""Heads that the workers of one broker tell each other, in memory that they share.

The master makes the memory before it forks (catmq_site/server/master.py); a process without one has its own.
It is a table of 64-bit cells: when a head was last raised; for each node who watches it and since when, and
when a delayed message was last stored there; for each queue its durable head and until when somebody waits
for it. Cells are read and written one at a time, without a lock: a write that is lost leaves a head too low
or a wait unseen until the next look, never a head too high. Who raised one that somebody waits for rings the
others (bells.py).
What lies beyond the table each worker watches for itself.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterable

NODES = 1 << 12
QUEUES = 1 << 20
_CELL_BYTES = 8
SIZE = _CELL_BYTES * (1 + 3 * NODES + 2 * QUEUES)  # pages that nobody touches take no memory
LEASE_MS = 500  # a watcher that was not heard of for so long is followed by another


def now_ms() -> int:
    """Milliseconds on a clock that all processes of the machine share."""
    return time.monotonic_ns() // 1_000_000


class SharedHeads:
    """The table, as one process uses it."""

    def __init__(self, memory: mmap.mmap | None = None) -> None:
        self._cells = memoryview(memory or mmap.mmap(-1, SIZE)).cast("q")
        self._me = os.getpid()

    def raised_at(self) -> int:
        """A number that changes whenever a head was raised."""
        return self._cells[0]

    def head(self, queue: int) -> int:
        """The durable head of a queue as some worker knows it, 0 if none does."""
        return self._cells[_queue(queue)] if queue < QUEUES else 0

    def raise_head(self, queue: int, head: int) -> bool:
        """Tell all workers of a durable head; return True if it is news that some worker waits for."""
        if queue >= QUEUES or head <= self._cells[_queue(queue)]:
            return False
        self._cells[_queue(queue)] = head
        self._cells[0] = time.monotonic_ns()
        return self._cells[_queue(queue) + 1] > now_ms()

    def want(self, queue: int, until_ms: int) -> None:
        """Say that somebody waits for a queue, until a time of `now_ms`."""
        if queue < QUEUES:
            self._cells[_queue(queue) + 1] = until_ms

    def wanted(self, queues: Iterable[int], at_ms: int) -> set[int]:
        """Those of some queues that some worker waits for."""
        cells, first = self._cells, _queue(0) + 1  # asked for thousands, many times a second
        return {queue for queue in queues if queue < QUEUES and cells[first + 2 * queue] > at_ms}

    def leads(self, node: int, at_ms: int) -> bool:
        """Return True if this process watches a node for all; it does from now on if nobody else does."""
        if node >= NODES:
            return True
        cell = _node(node)
        if self._cells[cell] != self._me and at_ms - self._cells[cell + 1] < LEASE_MS:
            return False
        # Two that come at once both watch, for one turn.
        self._cells[cell], self._cells[cell + 1] = self._me, at_ms
        return True

    def leave(self, node: int) -> None:
        """Let another process watch a node."""
        if node < NODES and self._cells[_node(node)] == self._me:
            self._cells[_node(node) + 1] = 0

    def note_delayed(self, node: int) -> None:
        """Tell all workers that a delayed message was stored on a node, or may have been."""
        if node < NODES:
            self._cells[_node(node) + 2] = time.monotonic_ns()

    def delayed_at(self, node: int) -> int:
        """A number that changes whenever a worker stored a delayed message on a node; at every call for a
        node beyond the table."""
        return self._cells[_node(node) + 2] if node < NODES else time.monotonic_ns()


def _node(node: int) -> int:
    """The first of a node's cells."""
    return 1 + 3 * node


def _queue(queue: int) -> int:
    """The cell of a queue's head; the one after it says until when it is wanted."""
    return 1 + 3 * NODES + 2 * queue
