"""Times of commits, as intervals between samples of positions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class PositionSample(NamedTuple):
    """Position of a group in a queue at some time from `asked_ms` to `told_ms` (ms since
    1970).

    Both are times of the node, like the times at which it stored messages.
    """

    committed: int
    asked_ms: int
    told_ms: int


class CommitInterval(NamedTuple):
    """The offsets first … end - 1 were first committed after `after_ms` and by `by_ms`.

    `after_ms` is None if not known.
    """

    first: int
    end: int
    after_ms: int | None
    by_ms: int


def commit_intervals(samples: Iterable[PositionSample]) -> list[CommitInterval]:
    """Return when the offsets of a queue were first committed, from samples in order of
    time.

    After a reset to a lower offset, nothing counts as first committed until the
    position is above the highest one before.

    >>> samples = [(5, 10, 11), (5, 20, 21), (9, 30, 31), (7, 40, 41), (9, 50, 51)]
    >>> for interval in commit_intervals(PositionSample(*sample) for sample in samples):
    ...     print(interval)
    CommitInterval(first=0, end=5, after_ms=None, by_ms=11)
    CommitInterval(first=5, end=9, after_ms=20, by_ms=31)
    >>> commit_intervals([PositionSample(0, 10, 11), PositionSample(3, 20, 21)])
    [CommitInterval(first=0, end=3, after_ms=10, by_ms=21)]
    """
    intervals: list[CommitInterval] = []
    reached = 0
    previous_ms: int | None = None
    for sample in samples:
        if sample.committed > reached:
            intervals.append(
                CommitInterval(reached, sample.committed, previous_ms, sample.told_ms)
            )
            reached = sample.committed
        # Higher offsets were not committed yet when this sample was requested.
        previous_ms = sample.asked_ms
    return intervals
