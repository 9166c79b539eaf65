"""Durable heads in memory that the workers of a broker share.

The master creates the memory before it forks (catmq_site/background/broker_memory.py); a process
without a master has memory of its own. It is a table of 64-bit cells:

* the time when a head was last raised
* for each node: the process that watches it, its last sign of life, and the time when a
  delayed message was last stored there
* for each queue: its durable head, and the time until which a worker waits for it

Cells are read and written singly, without a lock. A lost write leaves a head too
low, or a wait unnoticed, until the next look. It never leaves a head too high. A worker
that raises a head for which another worker waits rings the others (bells.py). Nodes and queues
whose ids are beyond the table are watched by each worker itself.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterable

NODES = 1 << 12
QUEUES = 1 << 20
_CELL_BYTES = 8
# pages that are never touched take no memory
SIZE = _CELL_BYTES * (1 + 3 * NODES + 2 * QUEUES)
# after this time without a sign of life another process takes over the watch
LEASE_MS = 500


def now_ms() -> int:
    """Return milliseconds of the monotonic clock, which all processes of the machine share."""
    return time.monotonic_ns() // 1_000_000


class SharedHeads:
    """Access of a process to the shared table."""

    def __init__(self, memory: mmap.mmap | None = None) -> None:
        self._cells = memoryview(memory or mmap.mmap(-1, SIZE)).cast("q")
        self._me = os.getpid()

    def raised_at(self) -> int:
        """Return a number that changes whenever a head is raised."""
        return self._cells[0]

    def head(self, queue: int) -> int:
        """Return the highest durable head of a queue that a worker has noted, 0 if none
        has.
        """
        return self._cells[_queue(queue)] if queue < QUEUES else 0

    def raise_head(self, queue: int, head: int) -> bool:
        """Note a durable head for all workers. Return True if it is new and awaited."""
        if queue >= QUEUES or head <= self._cells[_queue(queue)]:
            return False
        self._cells[_queue(queue)] = head
        # After the head: a worker that sees the new time also sees the head.
        self._cells[0] = time.monotonic_ns()
        return self._cells[_queue(queue) + 1] > now_ms()

    def want(self, queue: int, until_ms: int) -> None:
        """Note that this process waits for a queue until a time of now_ms()."""
        if queue < QUEUES:
            self._cells[_queue(queue) + 1] = until_ms

    def wanted(self, queues: Iterable[int], at_ms: int) -> set[int]:
        # Called for thousands of queues many times a second, so _queue() is not called for
        # each.
        cells, first = self._cells, _queue(0) + 1
        return {
            queue for queue in queues if queue < QUEUES and cells[first + 2 * queue] > at_ms
        }

    def leads(self, node: int, at_ms: int) -> bool:
        """Return True if this process watches a node for all workers. Takes over a free
        watch.
        """
        if node >= NODES:
            return True
        cell = _node(node)
        if self._cells[cell] != self._me and at_ms - self._cells[cell + 1] < LEASE_MS:
            return False
        # Two processes that take over at once both watch the node, for one turn. That costs
        # a query only.
        self._cells[cell], self._cells[cell + 1] = self._me, at_ms
        return True

    def leave(self, node: int) -> None:
        if node < NODES and self._cells[_node(node)] == self._me:
            self._cells[_node(node) + 1] = 0

    def note_delayed(self, node: int) -> None:
        """Note for all workers that a delayed message was stored on a node, or may have
        been.
        """
        if node < NODES:
            self._cells[_node(node) + 2] = time.monotonic_ns()

    def delayed_at(self, node: int) -> int:
        """Return a number that changes whenever a worker stores a delayed message on a
        node.

        For a node beyond the table it changes at every call.
        """
        return self._cells[_node(node) + 2] if node < NODES else time.monotonic_ns()


def _node(node: int) -> int:
    """Return the index of the first cell of a node."""
    return 1 + 3 * node


def _queue(queue: int) -> int:
    """Return the index of a queue's head cell. The next cell has the end of the last wait."""
    return 1 + 3 * NODES + 2 * queue
