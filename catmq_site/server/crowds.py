"""Connections that wait for their clients: the oldest first, each until its time, no more
than so many.

An address that opens many connections harms itself: what is too much is taken from the
address that has most, and there the oldest goes.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """A waiting thing. `address` is the client's; '' stands for many, such as a trusted
    proxy's.
    """

    address: str


T = TypeVar("T", bound=Waiting)


class Crowd(Generic[T]):
    """Clients that wait for the same kind of thing, each for `limit_s` seconds at most.
    Threads may share it.

    `most` is the limit of all, `most_of_one` that of one address.
    """

    def __init__(
        self, *, limit_s: float, most: int, most_of_one: int | None = None
    ) -> None:
        self._limit_s, self._most, self._most_of_one = limit_s, most, most_of_one
        self._guard = threading.Lock()
        self._until: dict[T, float] = {}  # time.monotonic(), rising
        self._of: dict[str, dict[T, None]] = {}  # by address

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, one: T) -> bool:
        return one in self._until

    def add(self, one: T, then: Callable[[], object] | None = None) -> T | None:
        """Let one wait, and call `then` before anybody else can take it away.

        Returns who has to go instead, who no longer belongs to the crowd; None while there
        is room.
        """
        with self._guard:
            self._until[one] = time.monotonic() + self._limit_s
            mine = self._of.setdefault(one.address, {})
            mine[one] = None
            if then is not None:
                then()
            surplus = self._surplus(one.address)
            if surplus is not None:
                self._remove(surplus)
            return surplus

    def remove(self, one: T) -> bool:
        with self._guard:
            return self._remove(one)

    def oldest(self) -> T | None:
        """Take out the oldest of the address that has most; None if nobody is there."""
        with self._guard:
            one = self._first_of_largest()
            if one is not None:
                self._remove(one)
            return one

    def overdue(self) -> list[T]:
        now = time.monotonic()
        found: list[T] = []
        if not self._until:
            return found
        with self._guard:
            for one, until in self._until.items():
                if until > now:
                    break
                found.append(one)
            for one in found:
                self._remove(one)
        return found

    def older_than(self, age_s: float) -> list[T]:
        """Return those that have waited so long, the oldest first. They stay."""
        until = time.monotonic() + self._limit_s - age_s
        with self._guard:
            return list(
                itertools.takewhile(lambda one: self._until[one] <= until, self._until)
            )

    def hurry(self, limit_s: float) -> None:
        """Let nobody wait longer than so from now on."""
        with self._guard:
            self._limit_s = min(limit_s, self._limit_s)
            until = time.monotonic() + limit_s
            self._until = {one: min(until, had) for one, had in self._until.items()}

    def _surplus(self, address: str) -> T | None:
        mine = self._of[address]
        if address and self._most_of_one is not None and len(mine) > self._most_of_one:
            return next(iter(mine))
        return self._first_of_largest() if len(self._until) > self._most else None

    def _first_of_largest(self) -> T | None:
        if not self._of:
            return None
        largest = max(self._of, key=lambda address: len(self._of[address]))
        return next(iter(self._of[largest]))

    def _remove(self, one: T) -> bool:
        if self._until.pop(one, None) is None:
            return False
        mine = self._of[one.address]
        del mine[one]
        if not mine:
            del self._of[one.address]
        return True
