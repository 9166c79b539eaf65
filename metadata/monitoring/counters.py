"""Counts of this process since it last wrote them, in slots of ten seconds.

Slots follow the clock of the database. A process learns the difference to its own
monotonic clock whenever it writes. Counts from before the first write belong to the
slot in which they are written.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from time import monotonic

from msgspec import Struct

SLOT_S = 10
# (slot since 1970, None for the slot of the write; topic id; group id)
Key = tuple[int | None, int, int]


class Count(Struct, frozen=True):
    """Messages sent or pulled, bytes of their bodies, send errors, and messages handled."""

    messages: int = 0
    bytes: int = 0
    errors: int = 0
    handled: int = 0

    def plus(self, other: Count) -> Count:
        return Count(
            self.messages + other.messages,
            self.bytes + other.bytes,
            self.errors + other.errors,
            self.handled + other.handled,
        )


class Counters:
    """Counts of a process by (slot, topic, group); group 0 stands for sends.
    Thread-safe.

    `totals` has (pulled, handled) of each group since the process started.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Key, Count] = {}
        self.totals: dict[int, tuple[int, int]] = {}
        # Seconds by which the clock of the database is ahead of time.monotonic().
        self._ahead_s: float | None = None

    def learn(self, now_s: float) -> None:
        """Note the time of the database's clock, in seconds since 1970."""
        self._ahead_s = now_s - monotonic()

    def add(self, topic_id: int, group_id: int, count: Count) -> None:
        # Read once, because another thread may set it at any moment.
        ahead_s = self._ahead_s
        slot = None if ahead_s is None else int(monotonic() + ahead_s) // SLOT_S
        with self._lock:
            self._add((slot, topic_id, group_id), count)
            if group_id:
                pulled, handled = self.totals.get(group_id, (0, 0))
                self.totals[group_id] = pulled + count.messages, handled + count.handled

    def take(self) -> dict[Key, Count]:
        # Exchanged, not copied: every send and pull of the process takes this lock.
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts

    def put_back(self, counts: Mapping[Key, Count]) -> None:
        """Add counts again that could not be written.

        They join the slot of the next write, so an outage does not make the dictionary
        grow.
        """
        with self._lock:
            for (_slot, topic, group), count in counts.items():
                self._add((None, topic, group), count)

    def _add(self, key: Key, count: Count) -> None:
        former = self._counts.get(key)
        self._counts[key] = former.plus(count) if former else count
