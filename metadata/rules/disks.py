"""Free space at which a node counts as low or full."""

from __future__ import annotations

from enum import StrEnum

# This much more than the limit must be free before a node leaves a state, so that the
# state does not flicker.
HYSTERESIS_PERCENT = 2.0


class DiskState(StrEnum):
    """Free space on the disk of a node."""

    OK = "ok"
    LOW = "low"
    FULL = "full"  # the node stores no messages


def next_disk_state(
    before: str, *, free_percent: float, full_below: float, low_below: float
) -> DiskState:
    """Return the state from the one before and the percentage that is free now.

    >>> limits = {"full_below": 10, "low_below": 20}
    >>> [str(next_disk_state("ok", free_percent=free, **limits)) for free in (9.9, 10, 19, 20)]
    ['full', 'low', 'low', 'ok']
    >>> [str(next_disk_state("full", free_percent=free, **limits)) for free in (11, 12, 22)]
    ['full', 'low', 'ok']
    >>> next_disk_state("low", free_percent=21, **limits)
    <DiskState.LOW: 'low'>
    """
    if free_percent < full_below + (
        HYSTERESIS_PERCENT if before == DiskState.FULL else 0.0
    ):
        return DiskState.FULL
    if free_percent < low_below + (0.0 if before == DiskState.OK else HYSTERESIS_PERCENT):
        return DiskState.LOW
    return DiskState.OK
