"""Answers that a request did not wait for, because it asks other nodes, too.

A pull names queues of several nodes, and one of these that stands still must not hold up
the messages of the others until its circuit opens. So such a request waits only so long for
each node. A session whose answer was late keeps its place in the pool until the answer has
come; until then the node is *in doubt*, and requests like this one do not ask it. A node
that answers, but slowly, is waited for the longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from messagestore.engine.mysql_session import Session

LENIENCE = 2.0  # how much longer than its last late answer a node may take
FORGIVING = 0.9  # what is left of that after each answer that came in time


class CheckedOut(Protocol):
    @property
    def session(self) -> Session: ...


L = TypeVar("L", bound=CheckedOut)


class SlowAnswers(Generic[L]):
    """The late answers of one node; safe for all threads."""

    def __init__(self, give_back: Callable[[L], None]) -> None:
        """`give_back` takes the sessions whose answers have come."""
        self._give_back = give_back
        self._late: dict[L, float] = {}  # → when it was asked
        self._latest = float("-inf")
        self._slow_s = 0.0
        self._collecting = threading.Lock()

    def patience_s(self, asked_s: float) -> float:
        """Timeout in seconds for the node, where a node that is not slow would get
        `asked_s`.
        """
        return max(asked_s, LENIENCE * self._slow_s)

    def note_answer(self) -> None:
        self._slow_s *= FORGIVING

    def add(self, used: L, *, begun: float) -> None:
        """Nobody waits any more for the answer that a session was asked for at `begun`."""
        self._late[used] = begun
        self._latest = time.monotonic()

    def doubts(self, *, answered_at: float) -> bool:
        """Return True if an answer is missing, and none came since that was found out."""
        return bool(self._late) and self._latest > answered_at

    def collect(self) -> None:
        """Give the sessions back whose answers have come, or whose connections broke."""
        if not self._late:
            return
        with self._alone() as alone:
            for used, begun in list(self._late.items()) if alone else ():
                if used.session.catch_up():
                    if used.session.clean:
                        self._slow_s = time.monotonic() - begun
                    del self._late[used]
                    self._give_back(used)

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        alone = self._collecting.acquire(blocking=False)
        try:
            yield alone
        finally:
            if alone:
                self._collecting.release()
