"""Prove that a pull skips no message.

Offsets are dense, so the rows that were read must start at the requested offset and have no
holes. A missing offset must be explained: it was deleted by retention (below `low`), or
declared lost (in `queue_gap`). At a hole that neither explains nothing is delivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Verdict(NamedTuple):
    """Explanation of a missing offset.

    `state` is `cleaned`, `lost_tail` or `corrupt`, `next_offset` the offset at which to
    continue, and `gap` the rest of a declared gap.
    """

    state: str
    next_offset: int
    gap: tuple[int, int] | None = None


def dense_length(asked: int, offsets: Sequence[int]) -> int:
    """Count the rising offsets that follow `asked` without a hole.

    >>> dense_length(5, [5, 6, 7]), dense_length(5, [5, 7]), dense_length(5, [6])
    (3, 1, 0)
    """
    if not offsets or offsets[0] != asked:
        return 0
    if offsets[-1] - asked == len(offsets) - 1:
        return len(offsets)
    return next(index for index, offset in enumerate(offsets) if offset != asked + index)


def explain_missing(asked: int, *, low: int, gaps: Sequence[tuple[int, int]]) -> Verdict:
    """Explain why the message at `asked` is missing although the head is above it.

    `low` and `gaps` must be read after the rows: retention may have deleted rows since an
    earlier read.

    >>> (explain_missing(5, low=9, gaps=[]).state,
    ...  explain_missing(5, low=0, gaps=[(3, 8)]),
    ...  explain_missing(5, low=0, gaps=[]).state)
    ('cleaned', Verdict(state='lost_tail', next_offset=8, gap=(5, 8)), 'corrupt')
    """
    if asked < low:
        return Verdict("cleaned", asked)
    for first, end in gaps:
        if first <= asked < end:
            return Verdict("lost_tail", end, (asked, end))
    return Verdict("corrupt", asked)


def count_messages(first: int, end: int, *, gaps: Sequence[tuple[int, int]]) -> int:
    """Count the offsets from `first` to below `end` that are in none of the gaps.

    >>> count_messages(5, 100, gaps=[(0, 3), (90, 200)]), count_messages(5, 5, gaps=[])
    (85, 0)
    >>> count_messages(0, 10, gaps=[(2, 4), (6, 7)])
    7
    """
    lost = sum(
        max(0, min(end, gap_end) - max(first, gap_first)) for gap_first, gap_end in gaps
    )
    return max(0, end - first - lost)


class MissingOffsets(NamedTuple):
    """Offsets first … end - 1, which have no messages, and the reason.

    `reason` is `expired` (deleted by retention), `lost` (declared when a node was lost) or
    `unexplained`.
    """

    first: int
    end: int
    reason: str


def explain_all_missing(
    offsets: Sequence[int],
    *,
    first: int,
    end: int,
    low: int,
    gaps: Sequence[tuple[int, int]],
) -> list[MissingOffsets]:
    """Explain each offset from `first` to below `end` that is not among the rising
    `offsets`.

    As for `explain_missing`, `low` and `gaps` must be read after the rows.

    >>> for missing in explain_all_missing(
    ...     [3, 4, 8, 11], first=0, end=12, low=2, gaps=[(5, 8)]
    ... ):
    ...     print(*missing)
    0 2 expired
    2 3 unexplained
    5 8 lost
    9 11 unexplained
    """
    explained: list[MissingOffsets] = []
    position = first
    for offset in (*offsets, end):
        while position < offset:
            verdict = explain_missing(position, low=low, gaps=gaps)
            if verdict.state == "cleaned":
                reason, piece_end = "expired", low
            elif verdict.state == "lost_tail":
                reason, piece_end = "lost", verdict.next_offset
            else:
                # Up to the next declared gap. Above `position`, nothing is below `low`.
                next_gaps = [gap_first for gap_first, _ in gaps if gap_first > position]
                reason, piece_end = "unexplained", min([offset, *next_gaps])
            explained.append(MissingOffsets(position, min(piece_end, offset), reason))
            position = min(piece_end, offset)
        position = offset + 1
    return explained
