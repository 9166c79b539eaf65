"""Growth of a node, from sizes that were measured from time to time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

DAY_MS = 86_400_000
MIN_SPAN_MS = DAY_MS // 4  # growth within less than six hours would be noise


class Size(NamedTuple):
    at_ms: int
    bytes: int


def bytes_per_day(sizes: Sequence[Size]) -> float | None:
    """Return the growth between the first and last size (in order of time), None if the
    span is too short.

    >>> bytes_per_day([Size(0, 100), Size(DAY_MS // 2, 400), Size(DAY_MS, 300)])
    200.0
    >>> bytes_per_day([Size(0, 100), Size(60_000, 400)]) is None
    True
    """
    if not sizes or sizes[-1].at_ms - sizes[0].at_ms < MIN_SPAN_MS:
        return None
    first, last = sizes[0], sizes[-1]
    return (last.bytes - first.bytes) * DAY_MS / (last.at_ms - first.at_ms)


def days_left(free: int, growth: float | None) -> float | None:
    """Return the days until no byte is free at this growth, None if it does not grow or is
    not known.

    >>> days_left(1000, 100.0), days_left(1000, -5.0), days_left(1000, None)
    (10.0, None, None)
    """
    return free / growth if growth and growth > 0 else None
