"""The proof that a pull skips nothing.

Offsets are dense, so what was read must start at the offset asked for and rise by one. Whatever is
missing must be explained: cleaned (below `low`) or declared lost (in `queue_gap`). A hole that
nothing explains delivers nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Verdict(NamedTuple):
    """Rows that may be delivered: `state` (ok | cleaned | lost_tail | corrupt), how many, where to go on."""

    state: str
    deliver: int
    next_offset: int
    gap: tuple[int, int] | None = None


def dense(asked: int, offsets: Sequence[int]) -> int:
    """Count the rising offsets that follow `asked` without a hole.

    >>> dense(5, [5, 6, 7]), dense(5, [5, 7]), dense(5, [6])
    (3, 1, 0)
    """
    if not offsets or offsets[0] != asked:
        return 0
    if offsets[-1] - asked == len(offsets) - 1:
        return len(offsets)
    return next(index for index, offset in enumerate(offsets) if offset != asked + index)


def explain(asked: int, *, low: int, gaps: Sequence[tuple[int, int]]) -> Verdict:
    """Explain why the message at `asked` is missing although the head is above it.

    `low` and `gaps` must have been read after the rows.

    >>> explain(5, low=9, gaps=[]).state, explain(5, low=0, gaps=[(3, 8)]), explain(5, low=0, gaps=[]).state
    ('cleaned', Verdict(state='lost_tail', deliver=0, next_offset=8, gap=(5, 8)), 'corrupt')
    """
    if asked < low:
        return Verdict("cleaned", 0, asked)
    for first, end in gaps:
        if first <= asked < end:
            return Verdict("lost_tail", 0, end, (asked, end))
    return Verdict("corrupt", 0, asked)


def left(first: int, end: int, *, gaps: Sequence[tuple[int, int]]) -> int:
    """Count the offsets from `first` up to `end` that are in none of the gaps.

    >>> left(5, 100, gaps=[(0, 3), (90, 200)]), left(5, 5, gaps=[]), left(0, 10, gaps=[(2, 4), (6, 7)])
    (85, 0, 7)
    """
    lost = sum(max(0, min(end, gap_end) - max(first, gap_first)) for gap_first, gap_end in gaps)
    return max(0, end - first - lost)
