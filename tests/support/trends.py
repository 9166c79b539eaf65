"""Whether a sampled value stays flat over time: a robust slope over the second half of the
samples.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

Points = Sequence[tuple[float, float]]  # (time in s, value), ascending in time
MAX_POINTS = 120  # the number of slopes grows with its square


@dataclass(frozen=True, slots=True)
class Limit:
    """How much a value may rise in the second half: `most`, or a share of its median if
    that is larger.
    """

    most: float
    share: float = 0.0

    def of(self, median: float) -> float:
        """Return the limit for a median."""
        return max(self.most, self.share * abs(median))


@dataclass(frozen=True, slots=True)
class Trend:
    """The second half of a series. `rise` is the slope times its duration."""

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
    """Return the median of the slopes of all pairs (Theil and Sen).

    Single outliers or a step back do not change it.

    >>> slope([(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0), (4, 99.0)]), slope([(0, 5.0)])
    (1.0, 0.0)
    """
    step = -(-len(points) // MAX_POINTS)
    thinned = points[::step]
    slopes = [
        (b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(thinned, 2) if b[0] > a[0]
    ]
    return statistics.median(slopes) if slopes else 0.0


def trend(points: Points) -> Trend:
    """Return the trend of the second half, by time. Raises ValueError if it has fewer than
    two samples.
    """
    middle = (points[0][0] + points[-1][0]) / 2 if points else 0.0
    half = [point for point in points if point[0] >= middle]
    if len(half) < 2:
        raise ValueError(f"{len(half)} samples tell no trend")
    values = [value for _, value in half]
    rise = slope(half) * (half[-1][0] - half[0][0])
    return Trend(statistics.median(values), min(values), max(values), rise)


def rising(trends: Mapping[str, Trend], limits: Mapping[str, Limit]) -> list[str]:
    """Return the names of values that rise by more than their limit. Raises KeyError
    without a limit.
    """
    return [
        name
        for name, value_trend in trends.items()
        if value_trend.rise > limits[name].of(value_trend.median)
    ]
