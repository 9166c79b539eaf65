"""Ctrl-C and SIGTERM as a wish that a command looks at where it can keep its promises.

A signal that raised anywhere could tear a line from its commit. So the first one only sets
`asked`, and
raises where the command says that it is merely `waiting`. A command that does not come
round to looking within GRACE_S, because the reader of its output stands still, is
interrupted after all, as by a second one.
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
    """Call `act` again and again until a signal, and return exit code 0.

    It pauses for `every_s` seconds after each call that returned False.
    """
    with Stop() as stop, suppress(Stopped):
        while not stop.asked:
            if not act():
                with stop.waiting():
                    time.sleep(every_s)
    return 0


class Stopped(BaseException):
    """Raised by a signal; not an Exception, so that nothing on the way takes it for a
    failure.
    """


class Stop:
    """`with Stop() as stop:` catches the signals; only in the main thread, elsewhere it
    does nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._waiting = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._on_signal)
            if hasattr(signal, "SIGALRM"):
                self._before[signal.SIGALRM] = signal.signal(
                    signal.SIGALRM, self._on_signal
                )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.disarm()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def disarm(self) -> None:
        """End the grace period: the command has noticed the signal."""
        if hasattr(signal, "SIGALRM") and signal.SIGALRM in self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wrap a wait for input, where a signal may raise Stopped at once."""
        self._waiting = True
        try:
            if self.asked:
                raise Stopped
            yield
        finally:
            self._waiting = False

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.asked or self._waiting:
            self.asked = True
            raise Stopped
        self.asked = True
        if hasattr(signal, "SIGALRM"):
            signal.setitimer(signal.ITIMER_REAL, GRACE_S)
