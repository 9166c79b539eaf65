"""Times of commits, as far as positions that were looked at now and then tell them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class PositionSample(NamedTuple):
    """The position of a group in a queue at some moment from `asked_ms` to `told_ms`, ms
    since 1970.

    Both by the clock of the node, as the times at which it stored messages.
    """

    committed: int
    asked_ms: int
    told_ms: int


class CommitInterval(NamedTuple):
    """The offsets first … end - 1 were first committed after `after_ms` (None: nobody
    knows), by `by_ms`.
    """

    first: int
    end: int
    after_ms: int | None
    by_ms: int


def commit_intervals(looks: Iterable[PositionSample]) -> list[CommitInterval]:
    """Return the steps that looks, in order, tell of a queue from offset 0 on; none:
    nothing was committed.

    A group that goes back commits nothing for the first time until it is where it was.

    >>> samples = [(5, 10, 11), (5, 20, 21), (9, 30, 31), (7, 40, 41), (9, 50, 51)]
    >>> for interval in commit_intervals(PositionSample(*sample) for sample in samples):
    ...     print(interval)
    CommitInterval(first=0, end=5, after_ms=None, by_ms=11)
    CommitInterval(first=5, end=9, after_ms=20, by_ms=31)
    >>> commit_intervals([PositionSample(0, 10, 11), PositionSample(3, 20, 21)])
    [CommitInterval(first=0, end=3, after_ms=10, by_ms=21)]
    """
    found: list[CommitInterval] = []
    reached = 0
    after: int | None = None
    for look in looks:
        if look.committed > reached:
            found.append(CommitInterval(reached, look.committed, after, look.told_ms))
            reached = look.committed
        after = look.asked_ms
    return found
