"""Helpers that group pairs by key, and split sequences into chunks."""

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
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def chunks(items: Sequence[V], size: int) -> Iterator[Sequence[V]]:
    """Yield the items in sequences of at most `size`.

    >>> list(chunks([1, 2, 3], 2))
    [[1, 2], [3]]
    """
    for first in range(0, len(items), size):
        yield items[first : first + size]
