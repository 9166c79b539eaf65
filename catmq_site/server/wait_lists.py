"""Wait lists: connections that wait for their clients, each with a deadline, with limits on
their number.

Over a limit, the oldest entry of the address with most entries is evicted, so an address
that opens many connections harms only itself.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Waiter(Protocol):
    """An entry of a wait list. `address` is the client's, or '' where it stands for many
    clients, such as that of a trusted proxy.
    """

    address: str


T = TypeVar("T", bound=Waiter)


class WaitList(Generic[T]):
    """Entries that wait for the same kind of event, oldest first, each for at most
    `limit_s` seconds. Safe to use from several threads.

    `max_size` limits the number of entries, `max_per_address` the entries of an address.
    """

    def __init__(
        self, *, limit_s: float, max_size: int, max_per_address: int | None = None
    ) -> None:
        self._limit_s, self._max_size, self._max_per_address = (
            limit_s,
            max_size,
            max_per_address,
        )
        self._guard = threading.Lock()
        self._deadlines: dict[T, float] = {}  # time.monotonic(), ascending
        self._by_address: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, waiter: T) -> bool:
        return waiter in self._deadlines

    def add(self, waiter: T, on_added: Callable[[], object] | None = None) -> T | None:
        """Add an entry, and call `on_added` before another thread can remove it.

        Return the entry that was removed for it because of a limit, None while there is
        room.
        """
        with self._guard:
            self._deadlines[waiter] = time.monotonic() + self._limit_s
            same_address = self._by_address.setdefault(waiter.address, {})
            same_address[waiter] = None
            if on_added is not None:
                # Still under the lock: the loop finds the entry on the list when epoll
                # reports it.
                on_added()
            per_address = self._max_per_address if waiter.address else None
            if per_address is not None and len(same_address) > per_address:
                evicted: T | None = next(iter(same_address))
            elif len(self._deadlines) > self._max_size:
                evicted = self._oldest_of_largest_address()
            else:
                evicted = None
            if evicted is not None:
                self._remove(evicted)
            return evicted

    def remove(self, waiter: T) -> bool:
        """Remove an entry. Return False if it is not on the list any more."""
        with self._guard:
            return self._remove(waiter)

    def pop_oldest(self) -> T | None:
        """Remove and return the oldest entry of the address with most entries, None if the
        list is empty.
        """
        with self._guard:
            waiter = self._oldest_of_largest_address()
            if waiter is not None:
                self._remove(waiter)
            return waiter

    def pop_overdue(self) -> list[T]:
        """Remove and return the entries whose deadline has passed."""
        # Checked without the lock, which saves it at each turn of the loop.
        if not self._deadlines:
            return []
        with self._guard:
            expired = self._added_before_deadline(time.monotonic())
            for waiter in expired:
                self._remove(waiter)
        return expired

    def older_than(self, age_s: float) -> list[T]:
        """Return the entries that have waited for `age_s` seconds or more, oldest first.
        They stay on the list.
        """
        with self._guard:
            return self._added_before_deadline(time.monotonic() + self._limit_s - age_s)

    def shorten_limit(self, limit_s: float) -> None:
        """Let all entries, also later entries, wait `limit_s` seconds from now at most."""
        with self._guard:
            self._limit_s = min(limit_s, self._limit_s)
            deadline = time.monotonic() + limit_s
            self._deadlines = {
                waiter: min(deadline, old_deadline)
                for waiter, old_deadline in self._deadlines.items()
            }

    # The methods below need the lock.

    def _added_before_deadline(self, deadline: float) -> list[T]:
        return list(
            itertools.takewhile(lambda w: self._deadlines[w] <= deadline, self._deadlines)
        )

    def _oldest_of_largest_address(self) -> T | None:
        if not self._by_address:
            return None
        largest = max(self._by_address, key=lambda address: len(self._by_address[address]))
        return next(iter(self._by_address[largest]))

    def _remove(self, waiter: T) -> bool:
        if self._deadlines.pop(waiter, None) is None:
            return False
        same_address = self._by_address[waiter.address]
        del same_address[waiter]
        if not same_address:
            del self._by_address[waiter.address]
        return True
