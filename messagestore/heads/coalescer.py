"""Calls that come while one runs are done together by the next.

The first caller acts at once, for itself. Who comes meanwhile waits; then the first of those leads the
next round, for all that wait and fit into it. Nobody is handed anything when nobody waits, so a lone
caller pays for one lock. Each waits for an event of its own. (`metadata.limits.coalescer` is for calls that
must also be paced and counted.)
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from messagestore.engine import db_errors
from metadata.errors import CatmqError
from metadata.limits.concurrency import turnstile

LOOK_EVERY_S = 0.2

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Seat(Generic[Item, Result]):
    """One caller; `results` holds its result, or `error` what it is to raise."""

    __slots__ = ("error", "event", "item", "leads", "results")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.event: threading.Event | None = None
        self.leads = False
        self.results: list[Result] = []
        self.error: BaseException | None = None

    def outcome(self) -> Result:
        if self.error is not None:
            raise self.error
        return self.results[0]


class Rounds(Generic[Item, Result]):
    """`act` does a round for its items and gives a result for each; what it raises, each of them raises.

    `take` says how many of the waiting items fit into a round that begins with the first one; at least that.
    A caller waits at most `limit_s` for its round to begin and as long again for its end; `look(item)` ends
    the former wait sooner by what it raises.
    """

    def __init__(
        self,
        act: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        take: Callable[[Sequence[Item]], int] = len,
        look: Callable[[Item], None] | None = None,
        limit_s: float,
    ) -> None:
        self._act, self._take, self._look, self._limit_s = act, take, look, limit_s
        self._guard = threading.Lock()
        self._busy = False
        self._waiting: list[_Seat[Item, Result]] = []

    def submit(self, item: Item) -> Result:
        """The result of `item`. Raises what its round raised.

        Raises `db_errors.RolledBack` if its round did not begin in time, `db_errors.Ambiguous` if it did not
        end.
        """
        seat: _Seat[Item, Result] = _Seat(item)
        with self._guard:
            if self._busy:
                seat.event = threading.Event()
                self._waiting.append(seat)
            self._busy = True
        if seat.event is not None:
            with turnstile.aside():
                self._wait(seat, seat.event)
            if not seat.leads:
                return seat.outcome()
        return self._lead(seat)

    def waiting(self) -> int:
        """Number of callers that wait for the next round."""
        return len(self._waiting)

    def _wait(self, seat: _Seat[Item, Result], event: threading.Event) -> None:
        refusal = self._begun(seat, event)
        if refusal is None:
            return
        with self._guard:
            if seat in self._waiting:
                self._waiting.remove(seat)
                raise refusal
        if not event.wait(self._limit_s):
            raise db_errors.Ambiguous("The transaction that contains it did not end in time.")

    def _begun(self, seat: _Seat[Item, Result], event: threading.Event) -> CatmqError | None:
        """None once the event is set; else why the caller should not go on waiting."""
        end = time.monotonic() + self._limit_s
        while not event.wait(LOOK_EVERY_S):
            if time.monotonic() > end:
                return db_errors.RolledBack("Not tried: those before it took too long.")
            try:
                if self._look is not None:
                    self._look(seat.item)
            except CatmqError as error:
                return error
        return None

    def _lead(self, seat: _Seat[Item, Result]) -> Result:
        seats = self._gather(seat)
        try:
            results = self._act([one.item for one in seats])
            for one, result in zip(seats, results, strict=True):
                one.results.append(result)
        except Exception as error:
            for one in seats[1:]:  # each raises one of its own: threads must not share a traceback
                one.error = copy.copy(error)
                one.error.__cause__ = error
            raise
        except BaseException:  # this thread is ended; the others are not
            for one in seats:
                one.error = db_errors.Ambiguous("The thread that acted for this one was ended.")
            raise
        finally:
            self._hand_over()
            for one in seats[1:]:
                assert one.event is not None  # noqa: S101 - it waited
                one.event.set()
        return seat.outcome()

    def _gather(self, first: _Seat[Item, Result]) -> list[_Seat[Item, Result]]:
        with self._guard:
            if not self._waiting:
                return [first]
            seats = [first, *self._waiting]
            count = max(1, self._take([one.item for one in seats]))
            self._waiting = seats[count:]
            return seats[:count]

    def _hand_over(self) -> None:
        with self._guard:
            self._busy = bool(self._waiting)
            if self._waiting:
                following = self._waiting.pop(0)
                following.leads = True
                assert following.event is not None  # noqa: S101 - it waited
                following.event.set()
