"""Counts of this process since it last wrote them down, by the ten seconds in which it
happened.

Times are the database's: a process learns how far its own steady clock is from that one
whenever it writes, and counts of before it knew belong to the time at which they are first
written.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic

SLOT_S = 10
# (ten seconds since 1970, or None: when it is written; topic; group)
Key = tuple[int | None, int, int]


@dataclass(frozen=True, slots=True)
class Count:
    """Counts of messages sent or pulled, bytes of their bodies, errors, and messages
    handled.
    """

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
    """Counts of one process, by (ten seconds, topic, group); group 0 is what was sent.

    `totals`: (pulled, handled) of each group since the process began, whatever was written
    down.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Key, Count] = {}
        self.totals: dict[int, tuple[int, int]] = {}
        # the database's clock, of this process's steady one
        self._ahead_s: float | None = None

    def learn(self, now_s: float) -> None:
        self._ahead_s = now_s - monotonic()

    def add(self, topic_id: int, group_id: int, count: Count) -> None:
        ahead_s = self._ahead_s
        slot = None if ahead_s is None else int(monotonic() + ahead_s) // SLOT_S
        with self._lock:
            self._add((slot, topic_id, group_id), count)
            if group_id:
                pulled, handled = self.totals.get(group_id, (0, 0))
                self.totals[group_id] = pulled + count.messages, handled + count.handled

    def take(self) -> dict[Key, Count]:
        with self._lock:
            taken, self._counts = self._counts, {}
        return taken

    def put_back(self, counts: Mapping[Key, Count]) -> None:
        """Keep what could not be written: it will belong to the time at which it is, so it
        stays little.
        """
        with self._lock:
            for (_slot, topic, group), count in counts.items():
                self._add((None, topic, group), count)

    def _add(self, key: Key, count: Count) -> None:
        known = self._counts.get(key)
        self._counts[key] = known.plus(count) if known else count
