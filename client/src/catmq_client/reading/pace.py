"""The pace of run() through its messages: the time for which what it holds will last."""

from __future__ import annotations

import time

# Over how long it is measured, s.
WINDOW_S = 1.0
# The shortest time that says anything, s: two threads may end in the same millisecond.
LEAST_S = 0.02


class Pace:
    """Messages a second, from a count that only rises."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._count = 0
        self._former = 0.0

    def per_s(self, count: int) -> float:
        """The pace, given the count now."""
        now = time.monotonic()
        passed_s = now - self._since
        pace = (count - self._count) / max(passed_s, LEAST_S)
        if passed_s > WINDOW_S:
            self._since, self._count, self._former = now, count, pace
        elif passed_s < WINDOW_S / 4:
            pace = max(pace, self._former)  # too soon to say that it fell
        return pace
