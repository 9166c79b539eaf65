"""Items by what they have in common, and in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in their order.

    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def chunks(items: Sequence[V], size: int) -> Iterator[Sequence[V]]:
    """Yield the items, so many at once.

    >>> list(chunks([1, 2, 3], 2))
    [[1, 2], [3]]
    """
    for first in range(0, len(items), size):
        yield items[first : first + size]
