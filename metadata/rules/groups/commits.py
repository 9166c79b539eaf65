"""Times of commits, as far as positions that were looked at now and then tell them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Look(NamedTuple):
    """The position of a group in a queue at some moment from `asked_ms` to `told_ms`, ms
    since 1970.

    Both by the clock of the node, as the times at which it stored messages.
    """

    committed: int
    asked_ms: int
    told_ms: int


class Step(NamedTuple):
    """The offsets first … end - 1 were first committed after `after_ms` (None: nobody
    knows), by `by_ms`.
    """

    first: int
    end: int
    after_ms: int | None
    by_ms: int


def steps(looks: Iterable[Look]) -> list[Step]:
    """Return the steps that looks, in order, tell of a queue from offset 0 on; none:
    nothing was committed.

    A group that goes back commits nothing for the first time until it is where it was.

    >>> steps([Look(5, 10, 11), Look(5, 20, 21), Look(9, 30, 31), Look(7, 40, 41), Look(9, 50, 51)])
    [Step(first=0, end=5, after_ms=None, by_ms=11), Step(first=5, end=9, after_ms=20,
    by_ms=31)]
    >>> steps([Look(0, 10, 11), Look(3, 20, 21)])
    [Step(first=0, end=3, after_ms=10, by_ms=21)]
    """
    found: list[Step] = []
    reached = 0
    after: int | None = None
    for look in looks:
        if look.committed > reached:
            found.append(Step(reached, look.committed, after, look.told_ms))
            reached = look.committed
        after = look.asked_ms
    return found
