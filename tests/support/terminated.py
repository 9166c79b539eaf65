"""SIGTERM for a program of the tests that sends by the clock.

A handler that sets a `threading.Event` hangs for ever if it interrupts the main thread
inside `wait()` of the same event, which holds its lock: of eight processes that waited for
0 s at a time, four hung. So the signal is blocked, and waited for.
"""

from __future__ import annotations

import signal


class Terminated:
    """Made before any other thread, which must not get the signal, either."""

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self._came = False

    def wait(self, seconds: float) -> bool:
        """Return True as soon as SIGTERM has come, False after so long without one."""
        self._came = (
            self._came
            or signal.sigtimedwait({signal.SIGTERM}, max(0.0, seconds)) is not None
        )
        return self._came
