"""Concurrency limiter: only a few of a broker's threads work at the same time. The others
wait for their turn without competing for the interpreter.

A worker has hundreds of threads, because most of them wait for something. If many have work
at the same time, all compete for the interpreter, and each gets it back after a database
call only when all others had it. Work of milliseconds takes seconds then, and so do the
database locks that it holds.

So every request passes the limiter in the order of arrival, heartbeats first. A thread that
waits for something other than a database steps aside for that time (`aside`), and comes
back before new requests.

A database that does not answer keeps its callers inside. So if no thread has left for
STALL_S, another is admitted. All other work continues then, more slowly.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import AbstractContextManager

PLACES = 12
STALL_S = 0.02


class ConcurrencyLimiter:
    """Lets `places` threads work at the same time. A thread that never entered is not
    limited.
    """

    def __init__(self, *, places: int = PLACES, stall_s: float = STALL_S) -> None:
        self._places, self._stall_s = places, stall_s
        self._guard = threading.Lock()
        self._inside = 0
        self._first: deque[threading.Event] = deque()
        self._later: deque[threading.Event] = deque()
        # time.monotonic() when a thread last left, or was admitted because of a stall
        self._moved_at = 0.0
        self._thread = threading.local()

    def permit(self, *, first: bool = False) -> AbstractContextManager[None]:
        """Hold a place during a request. With `first`, before other requests that wait:
        for work that must not be late.
        """
        return _Permit(self, first=first)

    def aside(self) -> AbstractContextManager[None]:
        """Give up the thread's place while it waits and does no work."""
        return _Aside(self)

    def enter(self, *, first: bool) -> None:
        """Wait for a place, and take it."""
        with self._guard:
            if self._inside < self._places:
                self._inside += 1
                self._thread.entered = True
                return
            turn = threading.Event()
            (self._first if first else self._later).append(turn)
            # A thread far back in the queue checks for a stall less often: hundreds of
            # threads that wake up would compete for the interpreter.
            check_s = self._stall_s * self.waiting()
        while not turn.wait(check_s):
            with self._guard:
                now = time.monotonic()
                if now - self._moved_at >= self._stall_s:
                    self._moved_at = now
                    self._admit()
        self._thread.entered = True

    def leave(self) -> bool:
        """Give up this thread's place. Return False if it has none."""
        if not getattr(self._thread, "entered", False):
            return False
        self._thread.entered = False
        with self._guard:
            self._moved_at = time.monotonic()
            self._inside -= 1
            # After a stall there may be more inside than places: then no thread is admitted.
            if self._inside < self._places:
                self._admit()
        return True

    def waiting(self) -> int:
        """Return the number of threads that wait for a place."""
        return len(self._first) + len(self._later)

    def _admit(self) -> None:
        """Admit the next thread that waits, if any. The caller holds the guard."""
        queue = self._first or self._later
        if queue:
            # Counted here and not by the admitted thread, so that no other takes the place
            # before that wakes up.
            self._inside += 1
            queue.popleft().set()


class _Permit(AbstractContextManager[None]):
    """See ConcurrencyLimiter.permit. A class, because a generator would cost every request
    more.
    """

    __slots__ = ("_first", "_limiter")

    def __init__(self, limiter: ConcurrencyLimiter, *, first: bool) -> None:
        self._limiter, self._first = limiter, first

    def __enter__(self) -> None:
        self._limiter.enter(first=self._first)

    def __exit__(self, *raised: object) -> None:
        self._limiter.leave()


class _Aside(AbstractContextManager[None]):
    __slots__ = ("_had_place", "_limiter")

    def __init__(self, limiter: ConcurrencyLimiter) -> None:
        self._limiter, self._had_place = limiter, False

    def __enter__(self) -> None:
        self._had_place = self._limiter.leave()

    def __exit__(self, *raised: object) -> None:
        if self._had_place:
            self._limiter.enter(first=True)


limiter = ConcurrencyLimiter()  # of this process
