"""Places: a limit on concurrent work of a kind in a process, and on each caller's part of
it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager


class Places:
    """`most` places, of which each caller may have `most_per_caller`. Without a free place a
    caller is refused at once.

    A caller may also count against shared identities, such as its API key and its address.
    All callers of such an identity have at most `most_shared` places together (by default all).
    """

    def __init__(
        self, *, most: int, most_per_caller: int, most_shared: int | None = None
    ) -> None:
        self._most, self._most_per_caller = most, most_per_caller
        self._most_shared = most if most_shared is None else most_shared
        self._guard = threading.Lock()
        self._taken: Counter[Hashable] = Counter()
        self._total = 0

    def take(self, caller: Hashable, shared: Sequence[Hashable] = ()) -> bool:
        """Take a place for a caller. Return False if none is free for it or for any of its
        `shared` identities.
        """
        with self._guard:
            if self._total >= self._most or self._taken[caller] >= self._most_per_caller:
                return False
            if any(self._taken[identity] >= self._most_shared for identity in shared):
                return False
            self._total += 1
            self._taken.update((caller, *shared))
            return True

    def holds_full_share(self, caller: Hashable) -> bool:
        """Return True if a caller has all the places that a caller may have."""
        return self._taken[caller] >= self._most_per_caller

    def give_back(self, caller: Hashable, shared: Sequence[Hashable] = ()) -> None:
        """Give back a place that was taken with the same arguments."""
        with self._guard:
            self._total -= 1
            for identity in (caller, *shared):
                self._taken[identity] -= 1
                # Without this, the memory would grow with every address ever seen.
                if not self._taken[identity]:
                    del self._taken[identity]

    @contextmanager
    def place(self, caller: Hashable, shared: Sequence[Hashable] = ()) -> Iterator[bool]:
        """Hold a place during a block. Yields False if none was free."""
        has_place = self.take(caller, shared)
        try:
            yield has_place
        finally:
            if has_place:
                self.give_back(caller, shared)
