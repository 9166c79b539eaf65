"""Memory of a process about Java clients, bounded whatever they send."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V]):
    """A dict that is emptied when it is full.

    For entries that are only an optimization: a missing entry costs a look-up.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        # Emptied, not trimmed: an order of use would cost more than the look-ups.
        if len(self) >= self._limit and key not in self:
            self.clear()
        super().__setitem__(key, value)
