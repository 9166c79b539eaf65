"""Ctrl-C and SIGTERM as a request that a command checks where it can stop safely.

A signal that raises at any place could separate a printed line from its commit. So the
first signal only sets `requested`, and raises Stopped inside `waiting()`. A command that
does not check within GRACE_S, because the reader of its output has stopped reading, is
interrupted as by a second signal.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Self

GRACE_S = 3.0


def until_stopped(act: Callable[[], bool], *, every_s: float) -> int:
    """Call `act` until a signal comes, and return exit code 0.

    It pauses for `every_s` seconds after each call that returned False.
    """
    with Stop() as stop, suppress(Stopped):
        while not stop.requested:
            if not act():
                with stop.waiting():
                    time.sleep(every_s)
    return 0


class Stopped(BaseException):
    """Raised by a signal. It is no Exception, so that no handler takes it for a failure."""


class Stop:
    """`with Stop() as stop:` handles the signals.

    Python allows that in the main thread only; in another thread it does nothing.
    """

    def __init__(self) -> None:
        self.requested: bool = False
        self._waiting = False
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous_handlers[number] = signal.signal(number, self._on_signal)
            # Windows has no SIGALRM, so there is no grace period.
            if hasattr(signal, "SIGALRM"):
                self._previous_handlers[signal.SIGALRM] = signal.signal(
                    signal.SIGALRM, self._on_signal
                )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Before the handlers are restored: by default SIGALRM ends the process.
        self.disarm()
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def disarm(self) -> None:
        """End the grace period: the command has noticed the signal."""
        if hasattr(signal, "SIGALRM") and signal.SIGALRM in self._previous_handlers:
            signal.setitimer(signal.ITIMER_REAL, 0)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark a wait for input, in which a signal may raise Stopped at once."""
        self._waiting = True
        try:
            # A signal just before the wait would otherwise be noticed only after it.
            if self.requested:
                raise Stopped
            yield
        finally:
            self._waiting = False

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # The second signal, the end of the grace period, or a signal during a wait.
        if self.requested or self._waiting:
            self.requested = True
            raise Stopped
        self.requested = True
        if hasattr(signal, "SIGALRM"):
            signal.setitimer(signal.ITIMER_REAL, GRACE_S)
