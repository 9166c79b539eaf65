"""Limits at which a node counts as full, or nearly so."""

from __future__ import annotations

# percent more than the limit must be free before a state is left: it must not flicker
APART = 2.0


def next_disk_state(
    before: str, *, free_percent: float, full_below: float, low_below: float
) -> str:
    """`ok`, `low` or `full`, from what it was before and how much is free now.

    >>> limits = {"full_below": 10, "low_below": 20}
    >>> [next_disk_state("ok", free_percent=free, **limits) for free in (9.9, 10, 19, 20)]
    ['full', 'low', 'low', 'ok']
    >>> [next_disk_state("full", free_percent=free, **limits) for free in (11, 12, 22)]
    ['full', 'low', 'ok']
    >>> next_disk_state("low", free_percent=21, **limits)
    'low'
    """
    if free_percent < full_below + (APART if before == "full" else 0.0):
        return "full"
    if free_percent < low_below + (0.0 if before == "ok" else APART):
        return "low"
    return "ok"
