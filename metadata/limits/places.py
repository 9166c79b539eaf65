"""Places for work that only so many may do at once in a process, and only so many of them
for one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager


class Places:
    """`most` places of which one asker gets `most_of_one`; nobody waits for one.

    An asker may belong to wider ones, such as its API key and its address: each of these
    gets `most_shared` (all places, unless it is given).
    """

    def __init__(
        self, *, most: int, most_of_one: int, most_shared: int | None = None
    ) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._most_shared = most if most_shared is None else most_shared
        self._guard = threading.Lock()
        self._taken: Counter[Hashable] = Counter()
        self._total = 0

    def take(self, who: Hashable, shared: Sequence[Hashable] = ()) -> bool:
        """Take a place, if one is free for this asker and the wider ones; whether it was."""
        with self._guard:
            if self._total >= self._most or self._taken[who] >= self._most_of_one:
                return False
            if any(self._taken[wider] >= self._most_shared for wider in shared):
                return False
            self._total += 1
            self._taken.update((who, *shared))
            return True

    def has_its_share(self, who: Hashable) -> bool:
        return self._taken[who] >= self._most_of_one

    def give_back(self, who: Hashable, shared: Sequence[Hashable] = ()) -> None:
        """Give back a place that was taken with the same arguments."""
        with self._guard:
            self._total -= 1
            for asker in (who, *shared):
                self._taken[asker] -= 1
                if not self._taken[asker]:
                    del self._taken[asker]

    @contextmanager
    def place(self, who: Hashable, shared: Sequence[Hashable] = ()) -> Iterator[bool]:
        """Hold a place for the length of a block, which learns whether it got one."""
        taken = self.take(who, shared)
        try:
            yield taken
        finally:
            if taken:
                self.give_back(who, shared)
