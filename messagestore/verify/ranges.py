"""Sets of offsets as ranges (first, end) with an exclusive end: few ranges, however many
offsets.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

Range = tuple[int, int]


class Ranges:
    """Disjoint ranges in rising order. Adjacent ranges merge, so a dense queue is a single
    range.
    """

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[Range]:
        return zip(self._firsts, self._ends, strict=True)

    def add(self, first: int, end: int) -> Range | None:
        """Add first … end-1. Return the range from the first to the last offset that was in
        already.

        >>> ranges = Ranges()
        >>> ranges.add(0, 5), ranges.add(9, 12), ranges.add(4, 10), list(ranges)
        (None, None, (4, 10), [(0, 12)])
        """
        low_index = bisect_left(
            self._ends, first
        )  # the first range that touches or follows
        high_index = bisect_right(self._firsts, end)  # the first range after it
        overlaps = [
            (max(first, self._firsts[index]), min(end, self._ends[index]))
            for index in range(low_index, high_index)
            if self._firsts[index] < end and self._ends[index] > first
        ]
        if low_index < high_index:
            first, end = (
                min(first, self._firsts[low_index]),
                max(end, self._ends[high_index - 1]),
            )
        self._firsts[low_index:high_index] = [first]
        self._ends[low_index:high_index] = [end]
        return (overlaps[0][0], overlaps[-1][1]) if overlaps else None


def without(ranges: Iterable[Range], removed: Iterable[Range]) -> list[Range]:
    """Return rising, disjoint ranges without the offsets of other ranges.

    >>> without([(0, 10), (20, 30)], [(4, 6), (9, 22)])
    [(0, 4), (6, 9), (22, 30)]
    """
    rising = sorted(span for span in removed if span[0] < span[1])
    remaining = []
    for first, end in ranges:
        for removed_first, removed_end in rising:
            if removed_end <= first or removed_first >= end:
                continue
            if removed_first > first:
                remaining.append((first, removed_first))
            first = max(first, removed_end)
        if first < end:
            remaining.append((first, end))
    return remaining


def within(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """Return the ranges that both have in common.

    >>> within([(0, 10), (20, 30)], [(4, 6), (9, 22)])
    [(4, 6), (9, 10), (20, 22)]
    """
    listed = list(others)
    return sorted(
        (max(first, other_first), min(end, other_end))
        for first, end in ranges
        for other_first, other_end in listed
        if max(first, other_first) < min(end, other_end)
    )


def holes(first: int, end: int, *, offsets: Sequence[int]) -> list[Range]:
    """Return the ranges of first … end-1 that are missing in rising offsets.

    >>> holes(0, 8, offsets=[1, 2, 5])
    [(0, 1), (3, 5), (6, 8)]
    """
    missing = []
    for offset in offsets:
        if offset > first:
            missing.append((first, offset))
        first = offset + 1
    return [*missing, (first, end)] if first < end else missing


def cut(ranges: Iterable[Range], most: int) -> Iterator[Range]:
    """Yield the ranges in pieces of at most `most` offsets.

    >>> list(cut([(0, 5), (7, 9)], 3))
    [(0, 3), (3, 5), (7, 9)]
    """
    for first, end in ranges:
        for start in range(first, end, most):
            yield start, min(end, start + most)


def shown(first: int, end: int) -> str:
    """Return a range as text. People count the last offset in.

    >>> shown(5, 6), shown(5, 9)
    ('offset 5', 'offsets 5 … 8')
    """
    return f"offset {first}" if end - first == 1 else f"offsets {first} … {end - 1}"
