"""Late answers: a request to several nodes does not wait for those that are slow.

A pull names queues on several nodes, and a stalled node must not hold up the messages of
the others until its circuit opens. So such a request waits for each node only for a limited
time. A session whose answer is late keeps its place in the pool until the answer arrives.
Until then the node is *in doubt*, and such requests do not query it. A node that answers,
but slowly, gets more time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from messagestore.engine.mysql_session import Session

PATIENCE_FACTOR = 2.0  # times the duration of the last late answer that a node may take
DECAY = 0.9  # of that duration, at each answer in time


class HasSession(Protocol):
    """An object that has a session, such as a pooled one."""

    @property
    def session(self) -> Session: ...


L = TypeVar("L", bound=HasSession)


class SlowAnswers(Generic[L]):
    """The late answers of a node. Thread-safe."""

    def __init__(self, give_back: Callable[[L], None]) -> None:
        """`give_back` takes sessions whose answers have arrived."""
        self._give_back = give_back
        self._pending: dict[
            L, float
        ] = {}  # session → time.monotonic() at the start of the call
        self._last_late_at = float("-inf")
        self._slow_s = 0.0
        self._collecting = threading.Lock()

    def patience_s(self, default_s: float) -> float:
        """Return the time limit in seconds, which is `default_s` for a node that is not
        slow.
        """
        return max(default_s, PATIENCE_FACTOR * self._slow_s)

    def note_answer(self) -> None:
        """Record an answer in time: the limit shrinks again."""
        self._slow_s *= DECAY

    def add(self, pooled: L, *, began_at: float) -> None:
        """Keep a session whose caller stopped waiting; its call began at `began_at`."""
        self._pending[pooled] = began_at
        self._last_late_at = time.monotonic()

    def doubts(self, *, answered_at: float) -> bool:
        """Return True if an answer is late, and the node answered nothing since."""
        return bool(self._pending) and self._last_late_at > answered_at

    def collect(self) -> None:
        """Give back sessions whose answer has arrived or whose connection broke."""
        # Two threads must not read the answer of the same session.
        if not self._pending or not self._collecting.acquire(blocking=False):
            return
        try:
            for pooled, began_at in list(self._pending.items()):
                if pooled.session.catch_up():
                    if pooled.session.clean:
                        self._slow_s = time.monotonic() - began_at
                    del self._pending[pooled]
                    self._give_back(pooled)
        finally:
            self._collecting.release()
