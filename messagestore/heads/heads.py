"""Pulls that wait for queues, and the durable heads this process knows.

A waiting pull registers the queues and offsets it waits behind. It is woken by a send of the same process, by
the watchers (head_watcher.py), which hear of sends of other processes, or by a change of its group. A waiter
holds no database connection. Only heads that are durable come here: durability.py says how one knows.
"""

from __future__ import annotations

import itertools
import mmap
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Set
from typing import Protocol

from messagestore.heads.bells import Bells
from messagestore.heads.shared_heads import SharedHeads, now_ms
from messagestore.pool import known_heads

WANTED_MS = 1000  # how long the other workers take a wait for granted


class Flag(Protocol):
    """Raised for a waiter; `threading.Event` is one."""

    def set(self) -> None:
        """Raise it: any thread does, and holds locks of the board."""

    def is_set(self) -> bool:
        """Return True while it is raised."""


class Waiter:
    """One waiting pull: wakes when a head passes an offset, its group changes, or everything stops.

    One that `shares` the queues with the others of its group is woken for a message of its own only.
    `flag` is what is raised to wake it: an event of its own, for which a thread waits, or another one.
    """

    def __init__(
        self,
        board: HeadBoard,
        group_id: int,
        offsets: Mapping[int, int],
        *,
        shares: bool = False,
        flag: Flag | None = None,
    ) -> None:
        self.group_id = group_id
        self.offsets = offsets
        self.shares = shares
        self._event = threading.Event()
        self.flag: Flag = self._event if flag is None else flag
        self._board = board

    def __enter__(self) -> Waiter:
        self._board.add(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._board.remove(self)

    def wait(self, timeout_s: float) -> bool:
        """Wait, and return True if something happened within the time."""
        return self._event.wait(timeout_s)


class HeadBoard:
    """The heads and waiters of one process; safe for all its threads."""

    def __init__(self) -> None:
        self.shared = SharedHeads()
        self._guard = threading.Lock()
        self._heads: dict[int, int] = {}
        self._by_queue: dict[int, set[Waiter]] = {}
        self._waiters: set[Waiter] = set()
        self._somebody = threading.Event()
        self._bell = Bells(1).take()
        self._raised_at = 0

    def share(self, memory: mmap.mmap, bells: Bells | None = None) -> None:
        """Share heads with the other workers of the broker; called before the first request."""
        self.shared = SharedHeads(memory)
        if bells is not None:
            self._bell = bells.take()

    def known(self, queue: int) -> int:
        """The highest durable head that a worker of this broker knows of a queue, 0 if none."""
        return max(self._heads.get(queue, 0), self.shared.head(queue))

    def watch(
        self, group_id: int, offsets: Mapping[int, int], *, shares: bool = False, flag: Flag | None = None
    ) -> Waiter:
        """A waiter behind {queue: offset}, to be used as a context manager."""
        return Waiter(self, group_id, offsets, shares=shares, flag=flag)

    def waiters(self) -> int:
        return len(self._waiters)

    def note(self, queue: int, head: int) -> None:
        """Record a durable head, wake those who wait behind it and tell the other workers."""
        with self._guard:
            before = self._heads.get(queue, -1)
            if head <= before:
                return
            self._heads[queue] = head
            known_heads.seen(queue, head)
            woken: Counter[int] = Counter()  # by group, of those that share
            for waiter in self._by_queue.get(queue, ()):
                if waiter.offsets[queue] < head and not waiter.flag.is_set():
                    news = head - max(before, waiter.offsets[queue])
                    if not waiter.shares or woken[waiter.group_id] < news:
                        woken[waiter.group_id] += waiter.shares
                        waiter.flag.set()
        if self.shared.raise_head(queue, head):
            self._bell.ring_others()

    def wake_some(self, group_id: int, queue: int, *, most: int) -> None:
        """Wake at most so many of a group's pulls that share a queue: there is something for each."""
        with self._guard:
            waiting = (one for one in self._by_queue.get(queue, ()) if one.shares and not one.flag.is_set())
            for waiter in itertools.islice((one for one in waiting if one.group_id == group_id), most):
                waiter.flag.set()

    def listen(self, seconds: float = 0.0) -> None:
        """Wake those who wait behind heads that other workers raised, or raise within a time."""
        self._bell.listen()
        self._look()
        self._bell.wait(seconds)
        self._look()

    def _look(self) -> None:
        """Wake those who wait behind heads that other workers raised."""
        raised_at = self.shared.raised_at()
        if raised_at == self._raised_at:
            return
        self._raised_at = raised_at  # a head that rises while we look changes it again
        with self._guard:
            awaited = list(self._by_queue)
        for queue in awaited:
            if (head := self.shared.head(queue)) > self._heads.get(queue, -1):
                self.note(queue, head)

    def awaited(self, among: Set[int]) -> Set[int]:
        """Those of some queues that pulls of this process wait for."""
        with self._guard:
            return self._by_queue.keys() & among

    def evict_except(self, queues: Collection[int]) -> None:
        with self._guard:
            self._heads = {queue: head for queue, head in self._heads.items() if queue in queues}

    def somebody_within(self, seconds: float) -> bool:
        """Return True if somebody waits, or comes within a time."""
        if self._waiters:
            return True
        came = self._somebody.wait(seconds)
        self._somebody.clear()
        return came

    def add(self, waiter: Waiter) -> None:
        """Register a waiter; one that has missed a head is woken at once."""
        until_ms = now_ms() + WANTED_MS
        with self._guard:
            self._waiters.add(waiter)
            for queue, offset in waiter.offsets.items():
                self._by_queue.setdefault(queue, set()).add(waiter)
                self.shared.want(queue, until_ms)
                if self.known(queue) > offset:
                    waiter.flag.set()
        self._somebody.set()

    def remove(self, waiter: Waiter) -> None:
        with self._guard:
            self._waiters.discard(waiter)
            for queue in waiter.offsets:
                waiting = self._by_queue.get(queue, set())
                waiting.discard(waiter)
                if not waiting:
                    self._by_queue.pop(queue, None)

    def wake_group(self, group_id: int) -> None:
        """Wake the pulls of a group: its generation or state changed."""
        self._wake(waiter for waiter in self._snapshot() if waiter.group_id == group_id)

    def wake_all(self) -> None:
        """Wake every pull, and the watchers: the process is about to stop."""
        self._somebody.set()
        self._bell.ring()
        self._wake(self._snapshot())

    def _snapshot(self) -> list[Waiter]:
        with self._guard:
            return list(self._waiters)

    @staticmethod
    def _wake(waiters: Iterable[Waiter]) -> None:
        for waiter in waiters:
            waiter.flag.set()


board = HeadBoard()
