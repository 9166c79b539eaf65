"""Calls that come while one runs are done together by the next.

The first caller acts at once, for itself. Who comes meanwhile waits; then the first of those acts for all
that wait and fit. Nobody is handed anything when nobody waits, so a lone caller pays for one lock. Each waits
for an event of its own. (`metadata.limits.coalescer` is for calls that must also be paced and counted.)

The caller acts in its own frame, so that the way from a request to the database stays short:

    with coalescer.turn(item) as turn:
        if turn.items:  # nobody else acted for it
            turn.results = act(turn.items)
    return turn.result
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, TypeVar

from messagestore.engine import db_errors
from metadata.errors import CatmqError
from metadata.limits.concurrency import limiter

LOOK_EVERY_S = 0.2

Item = TypeVar("Item")
Result = TypeVar("Result")


class Turn(Generic[Item, Result]):
    """A caller's turn. Inside, `items` are those to act for, its own first; none if another caller did.

    `results` is set to what came of each item, in order. `result` is the caller's own: None if `results` was
    not set, or if several items failed together with an error after which each is to be tried alone.
    """

    __slots__ = ("_coalescer", "_together", "error", "event", "item", "leads", "result", "results")

    def __init__(self, item: Item, coalescer: Coalescer[Item, Result] | None) -> None:
        self.item = item
        self.event: threading.Event | None = None  # it waits for it
        self.leads = False
        self.error: BaseException | None = None
        self.result: Result | None = None
        self.results: Sequence[Result] | None = None
        self._coalescer = coalescer
        self._together: list[Turn[Item, Result]] = [self]

    @property
    def items(self) -> list[Item]:
        """Items to act for."""
        return [one.item for one in self._together]

    def __enter__(self) -> Turn[Item, Result]:
        if self._coalescer is not None:
            self._together = self._coalescer.line_up(self)
            if self.error is not None:
                raise self.error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            if error is None:
                return self._share(self.results)
            if isinstance(error, self._coalescer.apart_after if self._coalescer else ()) and self._others():
                return self._share(None)
            for one in self._others():
                one.error = _for_another(error)
            return False
        finally:
            if self._coalescer is not None and self._together:
                self._coalescer.hand_over()
                for one in self._others():
                    assert one.event is not None  # noqa: S101 - it waited
                    one.event.set()
            self._together = []  # no circle with itself: the item would stay until the garbage collector came

    def _others(self) -> list[Turn[Item, Result]]:
        return self._together[1:]

    def _share(self, results: Sequence[Result] | None) -> bool:
        if results is not None:
            for one, result in zip(self._together, results, strict=True):
                one.result = result
        return True


def _for_another(error: BaseException) -> BaseException:
    """Return an error of its own for another thread: threads must not share a traceback."""
    if not isinstance(error, Exception):  # the thread that acted is ended; the others are not
        return db_errors.Ambiguous("The thread that acted for this one was ended.")
    other = copy.copy(error)
    other.__cause__ = error
    return other


class Coalescer(Generic[Item, Result]):
    """Lets one caller at a time act for all that wait; what it raises, each of them raises.

    `take` says how many of the waiting items are done together, from the first on; at least that one. Each
    waits at most `limit_s` for its turn to begin and as long again for its end; `look(item)` ends the former
    wait sooner by what it raises. After an error of `apart_after` each of several is to be tried alone.
    """

    def __init__(
        self,
        *,
        limit_s: float,
        take: Callable[[Sequence[Item]], int] = len,
        look: Callable[[Item], None] = lambda _: None,
        apart_after: tuple[type[Exception], ...] = (),
    ) -> None:
        self.apart_after = apart_after
        self._take, self._look, self._limit_s = take, look, limit_s
        self._guard = threading.Lock()
        self._busy = False
        self._waiting: list[Turn[Item, Result]] = []

    def turn(self, item: Item, *, alone: bool = False) -> Turn[Item, Result]:
        """Return a caller's turn, to be entered and left; `alone`: at once, beside what others do.

        Entering raises what was raised for it by another caller, `db_errors.RolledBack` if its turn did not
        begin in time, `db_errors.Ambiguous` if it did not end.
        """
        return Turn(item, None if alone else self)

    def waiting(self) -> int:
        """Count the callers that wait for the next turn."""
        return len(self._waiting)

    def line_up(self, turn: Turn[Item, Result]) -> list[Turn[Item, Result]]:
        """Wait, and return the turns that this one acts for, itself first; none if another acted for it."""
        with self._guard:
            if self._busy:
                turn.event = threading.Event()
                self._waiting.append(turn)
            self._busy = True
        if turn.event is not None:
            with limiter.aside():
                self._wait(turn, turn.event)
            if not turn.leads:
                return []
        with self._guard:
            together = [turn, *self._waiting]
            count = max(1, self._take([one.item for one in together])) if self._waiting else 1
            self._waiting = together[count:]
            return together[:count]

    def hand_over(self) -> None:
        """Let the first that waits act next."""
        with self._guard:
            self._busy = bool(self._waiting)
            if self._waiting:
                following = self._waiting.pop(0)
                following.leads = True
                assert following.event is not None  # noqa: S101 - it waited
                following.event.set()

    def _wait(self, turn: Turn[Item, Result], event: threading.Event) -> None:
        refusal = self._begun(turn, event)
        if refusal is None:
            return
        with self._guard:
            if turn in self._waiting:
                self._waiting.remove(turn)
                raise refusal
        if not event.wait(self._limit_s):
            raise db_errors.Ambiguous("The transaction that contains it did not end in time.")

    def _begun(self, turn: Turn[Item, Result], event: threading.Event) -> CatmqError | None:
        """None once the event is set; else why the caller should not go on waiting."""
        end = time.monotonic() + self._limit_s
        while not event.wait(LOOK_EVERY_S):
            if time.monotonic() > end:
                return db_errors.RolledBack("Not tried: those before it took too long.")
            try:
                self._look(turn.item)
            except CatmqError as error:
                return error
        return None
