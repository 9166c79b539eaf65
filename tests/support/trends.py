"""Whether something that is sampled over time stays flat: a robust slope over the second
half of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

Points = Sequence[tuple[float, float]]  # (when, s; value), rising in time
MOST_POINTS = 120  # a slope for each pair: more would only take longer


@dataclass(frozen=True, slots=True)
class Limit:
    """By how much a value may rise in the second half: `most`, or this share of its median
    if larger.
    """

    most: float
    share: float = 0.0

    def of(self, median: float) -> float:
        """The limit as an amount."""
        return max(self.most, self.share * abs(median))


@dataclass(frozen=True, slots=True)
class Trend:
    """The second half of a series; `rise` is how much it gained by its slope while that
    lasted.
    """

    median: float
    least: float
    most: float
    rise: float

    def __str__(self) -> str:
        return (
            f"{self.median:,.1f} ({self.least:,.1f} to {self.most:,.1f}), trend "
            f"{self.rise:+,.2f}"
        )


def slope(points: Points) -> float:
    """The median of the slopes of all pairs (Theil and Sen): single outliers, or a step
    back, do not move it.

    >>> slope([(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0), (4, 99.0)]), slope([(0, 5.0)])
    (1.0, 0.0)
    """
    step = -(-len(points) // MOST_POINTS)
    thinned = points[::step]
    slopes = [
        (b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(thinned, 2) if b[0] > a[0]
    ]
    return statistics.median(slopes) if slopes else 0.0


def trend(points: Points) -> Trend:
    """Of the second half, by time. Raises ValueError if there are fewer than two samples in
    it.
    """
    middle = (points[0][0] + points[-1][0]) / 2 if points else 0.0
    half = [point for point in points if point[0] >= middle]
    if len(half) < 2:
        raise ValueError(f"{len(half)} samples tell no trend")
    values = [value for _, value in half]
    rise = slope(half) * (half[-1][0] - half[0][0])
    return Trend(statistics.median(values), min(values), max(values), rise)


def rising(trends: Mapping[str, Trend], limits: Mapping[str, Limit]) -> list[str]:
    """Names of what rises by more than its limit. Raises KeyError for one without a limit."""
    return [
        name for name, found in trends.items() if found.rise > limits[name].of(found.median)
    ]
