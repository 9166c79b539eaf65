"""Places for work that only so many may do at once in a process, and only so many of them for one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable


class Places:
    """`most` places of which one asker gets `most_of_one`; nobody waits for one."""

    def __init__(self, *, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._guard = threading.Lock()
        self._taken: Counter[Hashable] = Counter()
        self._total = 0

    def take(self, who: Hashable) -> bool:
        """Take a place, if one is free for this asker; whether it was."""
        with self._guard:
            if self._total >= self._most or self._taken[who] >= self._most_of_one:
                return False
            self._total += 1
            self._taken[who] += 1
            return True

    def has_its_share(self, who: Hashable) -> bool:
        return self._taken[who] >= self._most_of_one

    def give_back(self, who: Hashable) -> None:
        with self._guard:
            self._total -= 1
            self._taken[who] -= 1
            if not self._taken[who]:
                del self._taken[who]
