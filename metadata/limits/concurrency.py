"""Few of a broker's threads work at once; the others wait for their turn, outside the
interpreter.

A worker has hundreds of threads, because most of them wait. When many have something to do,
all of them would fight for the interpreter, and each would get it back only after all the
others, after every call of a database: what takes milliseconds then takes seconds, and
locks are held for as long. So a request passes a limiter, in the order of arrival, but
heartbeats first; and whoever waits for something else than a database steps aside meanwhile
and comes back before the newcomers.

A database that does not answer keeps its callers inside. So if nobody has left for STALL_S,
one more is let in: everything else stays possible, if slowly.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import AbstractContextManager

PLACES = 12
STALL_S = 0.02


class ConcurrencyLimiter:
    """Lets `places` threads work at once. A thread that never entered passes everything
    freely.
    """

    def __init__(self, *, places: int = PLACES, stall_s: float = STALL_S) -> None:
        self._places, self._stall_s = places, stall_s
        self._guard = threading.Lock()
        self._inside = 0
        self._first: deque[threading.Event] = deque()
        self._later: deque[threading.Event] = deque()
        # time.monotonic() of the last time that somebody left, or was let in beyond
        self._moved_at = 0.0
        self._mine = threading.local()

    def permit(self, *, first: bool = False) -> AbstractContextManager[None]:
        """The work of one request; what must not be late goes before the others that come."""
        return _Permit(self, first=first)

    def aside(self) -> AbstractContextManager[None]:
        """Something that the thread waits for, and that is no work."""
        return _Aside(self)

    def enter(self, *, first: bool) -> None:
        self._enter(self._first if first else self._later)
        self._mine.entered = True

    def leave(self) -> bool:
        """End this thread's turn; whether it had one."""
        if not getattr(self._mine, "entered", False):
            return False
        self._mine.entered = False
        self._leave()
        return True

    def waiting(self) -> int:
        return len(self._first) + len(self._later)

    def _enter(self, queue: deque[threading.Event]) -> None:
        with self._guard:
            if self._inside < self._places:
                self._inside += 1
                return
            mine = threading.Event()
            queue.append(mine)
            # Who is far behind looks rarely: hundreds that look around would only fight for
            # the interpreter.
            look_s = self._stall_s * self.waiting()
        while not mine.wait(look_s):
            with self._guard:
                now = time.monotonic()
                if now - self._moved_at >= self._stall_s:
                    self._moved_at = now
                    self._admit()

    def _leave(self) -> None:
        with self._guard:
            self._moved_at = time.monotonic()
            self._inside -= 1
            if self._inside < self._places:
                self._admit()

    def _admit(self) -> None:
        """Let the next one in, if any waits. The caller holds the guard."""
        queue = self._first or self._later
        if queue:
            self._inside += 1
            queue.popleft().set()


class _Permit(AbstractContextManager[None]):
    """See ConcurrencyLimiter.permit. No generator: every request comes by here."""

    __slots__ = ("_first", "_limiter")

    def __init__(self, limiter: ConcurrencyLimiter, *, first: bool) -> None:
        self._limiter, self._first = limiter, first

    def __enter__(self) -> None:
        self._limiter.enter(first=self._first)

    def __exit__(self, *raised: object) -> None:
        self._limiter.leave()


class _Aside(AbstractContextManager[None]):
    __slots__ = ("_had_turn", "_limiter")

    def __init__(self, limiter: ConcurrencyLimiter) -> None:
        self._limiter, self._had_turn = limiter, False

    def __enter__(self) -> None:
        self._had_turn = self._limiter.leave()

    def __exit__(self, *raised: object) -> None:
        if self._had_turn:
            self._limiter.enter(first=True)


limiter = ConcurrencyLimiter()  # of this process
