"""The clock that leases are measured with."""

from __future__ import annotations

import time

# CLOCK_BOOTTIME goes on while a laptop sleeps or a machine is suspended; a lease must too.
_LEASE_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_clock() -> float:
    """Return the seconds of a clock that never goes back and never stands still."""
    return time.clock_gettime(_LEASE_CLOCK)
