"""The clock of the FakeBroker: real time, plus whatever a test puts forward."""

from __future__ import annotations

import time


class FakeClock:
    """Times in ms since 1970 UTC."""

    def __init__(self) -> None:
        self._ahead_ms = 0

    def now_ms(self) -> int:
        """The time now."""
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def advance(self, seconds: float) -> None:
        """Puts the clock forward."""
        self._ahead_ms += round(seconds * 1000)
