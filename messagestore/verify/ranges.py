"""Sets of offsets as ranges (first, end), `end` exclusive: few of them, however many
offsets.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

Range = tuple[int, int]


class Ranges:
    """Disjoint ranges in rising order. Neighbours melt into one, so a dense queue is a
    single range.
    """

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[Range]:
        return zip(self._firsts, self._ends, strict=True)

    def add(self, first: int, end: int) -> Range | None:
        """Put first … end-1 in; return what was in already, from the first such offset to
        the last.

        >>> ranges = Ranges()
        >>> ranges.add(0, 5), ranges.add(9, 12), ranges.add(4, 10), list(ranges)
        (None, None, (4, 10), [(0, 12)])
        """
        left = bisect_left(self._ends, first)  # the first range that touches or follows
        right = bisect_right(self._firsts, end)  # the first range behind it
        known = [
            (max(first, self._firsts[at]), min(end, self._ends[at]))
            for at in range(left, right)
            if self._firsts[at] < end and self._ends[at] > first
        ]
        if left < right:
            first, end = min(first, self._firsts[left]), max(end, self._ends[right - 1])
        self._firsts[left:right] = [first]
        self._ends[left:right] = [end]
        return (known[0][0], known[-1][1]) if known else None


def without(ranges: Iterable[Range], taken: Iterable[Range]) -> list[Range]:
    """Return what is left of rising, disjoint ranges when others are taken out.

    >>> without([(0, 10), (20, 30)], [(4, 6), (9, 22)])
    [(0, 4), (6, 9), (22, 30)]
    """
    rising = sorted(one for one in taken if one[0] < one[1])
    left = []
    for first, end in ranges:
        for taken_first, taken_end in rising:
            if taken_end <= first or taken_first >= end:
                continue
            if taken_first > first:
                left.append((first, taken_first))
            first = max(first, taken_end)
        if first < end:
            left.append((first, end))
    return left


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
    found = []
    for offset in offsets:
        if offset > first:
            found.append((first, offset))
        first = offset + 1
    return [*found, (first, end)] if first < end else found


def cut(ranges: Iterable[Range], most: int) -> Iterator[Range]:
    """The ranges in pieces of at most `most` offsets.

    >>> list(cut([(0, 5), (7, 9)], 3))
    [(0, 3), (3, 5), (7, 9)]
    """
    for first, end in ranges:
        for start in range(first, end, most):
            yield start, min(end, start + most)


def shown(first: int, end: int) -> str:
    """A range for people, who count its last offset in.

    >>> shown(5, 6), shown(5, 9)
    ('offset 5', 'offsets 5 … 8')
    """
    return f"offset {first}" if end - first == 1 else f"offsets {first} … {end - 1}"
