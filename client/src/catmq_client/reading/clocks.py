"""The clock that measures leases."""

from __future__ import annotations

import time

# CLOCK_BOOTTIME also counts the time that a laptop sleeps or a virtual machine is
# suspended. A lease must end in that time, because the broker's clock does not stop.
_LEASE_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_clock() -> float:
    """Return the seconds of a clock that never goes back and never stops."""
    return time.clock_gettime(_LEASE_CLOCK)
