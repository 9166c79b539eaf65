"""Schedules of faults, chosen by a seed before anything happens, so that a run can be
repeated.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

PAUSE_S = (0.5, 2.0)  # between the end of a strike and the next one
LENGTHS_S = (0.3, 1.0, 3.0)


class Strike(NamedTuple):
    """A line of a schedule: `what` is done from `at_s` on for `for_s` seconds to the target
    with this number.

    `figure` is a number for whatever else `what` has to choose.
    """

    number: int
    at_s: float
    what: str
    target: int
    for_s: float
    figure: int

    @property
    def end_s(self) -> float:
        """The time when it is over."""
        return self.at_s + self.for_s

    def __str__(self) -> str:
        where = f"target {self.target}, figure {self.figure}"
        return (
            f"line {self.number}: at {self.at_s:.1f} s for {self.for_s:.1f} s: "
            f"{self.what} ({where})"
        )


def planned(
    rng: random.Random,
    whats: Sequence[str],
    *,
    seconds: float,
    targets: int = 2,
    lengths_s: Sequence[float] = LENGTHS_S,
    pause_s: tuple[float, float] = PAUSE_S,
) -> list[Strike]:
    """Strikes that fill so many seconds, one after the other. Each kind comes before one
    comes again.

    >>> [one.what for one in planned(random.Random(1), ("cut", "hold"), seconds=9)][:2]
    ['hold', 'cut']
    """
    strikes: list[Strike] = []
    at_s, left = 0.0, list[str]()
    while at_s < seconds:
        if not left:
            left = rng.sample(whats, len(whats))
        what, target, figure = left.pop(), rng.randrange(targets), rng.randrange(10**6)
        strikes.append(
            Strike(len(strikes) + 1, at_s, what, target, rng.choice(lengths_s), figure)
        )
        at_s = strikes[-1].end_s + rng.uniform(*pause_s)
    return strikes
