"""Durable heads that this process knows, and the pulls that wait for them to rise.

A waiting pull registers its queues, each with an offset, and is woken when a head rises
above any of these offsets. Heads rise by sends of the same process, and by the watchers
(head_watcher.py), which learn of sends of other processes. A change of its group wakes the
pull as well. A waiter holds no database connection. Only durable heads are noted here
(durability.py).
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

WANTED_MS = 1000  # time for which other workers assume that a wait continues


class Flag(Protocol):
    """Flag that is raised to wake a waiter, such as a `threading.Event`."""

    def set(self) -> None:
        """Raise the flag. Must not block: the calling thread may hold the board's lock."""

    def is_set(self) -> bool:
        """Return True while the flag is raised."""


class Waiter:
    """A waiting pull. It is woken when a head passes any of its offsets, or its group
    changes.

    Shutdown wakes it as well. A waiter that `shares` its queues with others of its group
    (share groups) is woken only if there is a message for it, too. `flag` is raised to wake
    it: by default an event for which wait() waits.
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
        """Wait until the waiter is woken. Return False if the time is over before."""
        return self._event.wait(timeout_s)


class HeadBoard:
    """The durable heads and the waiters of a process. Thread-safe."""

    def __init__(self) -> None:
        self.shared = SharedHeads()
        self._guard = threading.Lock()
        self._heads: dict[int, int] = {}
        self._by_queue: dict[int, set[Waiter]] = {}
        self._waiters: set[Waiter] = set()
        self._waiter_added = threading.Event()
        self._bell = Bells(1).take()
        self._raised_at = 0

    def share(self, memory: mmap.mmap, bells: Bells | None = None) -> None:
        """Share heads with the other workers of the broker. Call it before the first
        request.
        """
        self.shared = SharedHeads(memory)
        if bells is not None:
            self._bell = bells.take()

    def durable_head(self, queue: int) -> int:
        """Return the highest durable head of a queue that this broker's workers know, 0 if
        none.
        """
        return max(self._heads.get(queue, 0), self.shared.head(queue))

    def watch(
        self,
        group_id: int,
        offsets: Mapping[int, int],
        *,
        shares: bool = False,
        flag: Flag | None = None,
    ) -> Waiter:
        """Return a waiter for heads above {queue: offset}, to be used as a context manager."""
        return Waiter(self, group_id, offsets, shares=shares, flag=flag)

    def waiters(self) -> int:
        return len(self._waiters)

    def note(self, queue: int, head: int) -> None:
        """Note a durable head. Wake the waiters that it serves, and ring the other workers."""
        with self._guard:
            before = self._heads.get(queue, -1)
            if head <= before:
                return
            self._heads[queue] = head
            known_heads.note_read(queue, head)
            # Of a share group at most as many waiters are woken as there are new messages:
            # the others would find nothing to lease.
            woken: Counter[int] = Counter()  # group id → woken waiters of a share group
            for waiter in self._by_queue.get(queue, ()):
                if waiter.offsets[queue] < head and not waiter.flag.is_set():
                    new_messages = head - max(before, waiter.offsets[queue])
                    if not waiter.shares or woken[waiter.group_id] < new_messages:
                        woken[waiter.group_id] += waiter.shares
                        waiter.flag.set()
        # Outside of the lock: a ring is a system call for each listening worker.
        if self.shared.raise_head(queue, head):
            self._bell.ring_others()

    def wake_some(self, group_id: int, queue: int, *, most: int) -> None:
        """Wake at most `most` waiters of a share group for a queue with that many runs to
        lease.
        """
        with self._guard:
            waiting = (
                w for w in self._by_queue.get(queue, ()) if w.shares and not w.flag.is_set()
            )
            for waiter in itertools.islice(
                (w for w in waiting if w.group_id == group_id), most
            ):
                waiter.flag.set()

    def listen(self, seconds: float = 0.0) -> None:
        """Wait `seconds` for heads that other workers raise. Note these and earlier heads."""
        # Look after the bell is armed, else a head raised in between would ring no bell.
        # Look again after the wait, because a ring may be lost.
        self._bell.listen()
        self._note_shared_heads()
        self._bell.wait(seconds)
        self._note_shared_heads()

    def _note_shared_heads(self) -> None:
        """Note heads that other workers raised, of the queues for which this process waits."""
        raised_at = self.shared.raised_at()
        if raised_at == self._raised_at:
            return
        # Stored before the heads are read: a head that rises meanwhile changes the number
        # again.
        self._raised_at = raised_at
        with self._guard:
            awaited = list(self._by_queue)
        for queue in awaited:
            if (head := self.shared.head(queue)) > self._heads.get(queue, -1):
                self.note(queue, head)

    def awaited(self, among: Set[int]) -> Set[int]:
        """Return the queues of `among` for which pulls of this process wait."""
        with self._guard:
            return self._by_queue.keys() & among

    def evict_except(self, queues: Collection[int]) -> None:
        with self._guard:
            self._heads = {q: head for q, head in self._heads.items() if q in queues}

    def has_waiter_within(self, seconds: float) -> bool:
        """Return True if a pull waits, or begins to wait within `seconds`."""
        if self._waiters:
            return True
        was_added = self._waiter_added.wait(seconds)
        self._waiter_added.clear()
        return was_added

    def add(self, waiter: Waiter) -> None:
        """Register a waiter. It is woken at once if a head has passed its offset already."""
        until_ms = now_ms() + WANTED_MS
        with self._guard:
            self._waiters.add(waiter)
            for queue, offset in waiter.offsets.items():
                self._by_queue.setdefault(queue, set()).add(waiter)
                self.shared.want(queue, until_ms)
                # Checked after registration, so that no head can rise unnoticed in between.
                if self.durable_head(queue) > offset:
                    waiter.flag.set()
        self._waiter_added.set()

    def remove(self, waiter: Waiter) -> None:
        with self._guard:
            self._waiters.discard(waiter)
            for queue in waiter.offsets:
                waiting = self._by_queue.get(queue, set())
                waiting.discard(waiter)
                if not waiting:
                    self._by_queue.pop(queue, None)

    def wake_group(self, group_id: int) -> None:
        """Wake the pulls of a group, because its generation or state changed."""
        self._wake(waiter for waiter in self._snapshot() if waiter.group_id == group_id)

    def wake_all(self) -> None:
        """Wake all pulls and the watchers, because the process is about to stop."""
        self._waiter_added.set()
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
