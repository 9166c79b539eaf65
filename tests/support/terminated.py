"""SIGTERM for a test program that sends by the clock.

A handler that sets a `threading.Event` deadlocks if it interrupts the main thread inside
`wait()` of the same event, which holds its lock: of eight processes that waited for 0 s at
a time, four hung. So the signal is blocked and awaited with sigtimedwait.
"""

from __future__ import annotations

import signal


class Terminated:
    """SIGTERM, blocked. Create it before other threads, so that they inherit the blocked
    signal.
    """

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self._received = False

    def wait(self, seconds: float) -> bool:
        """Return True as soon as SIGTERM arrives, False after `seconds` without it."""
        self._received = (
            self._received
            or signal.sigtimedwait({signal.SIGTERM}, max(0.0, seconds)) is not None
        )
        return self._received
