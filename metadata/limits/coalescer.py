"""Calls that come while one runs are done together by the next.

The first caller acts at once, for itself. Who comes meanwhile waits; then the first of
those acts for all that wait and fit. A lone caller pays for one lock. Each waits for an
event of its own: hundreds that wake for every batch would only fight for the interpreter.

The caller acts in its own frame, so that the way from a request to the database stays
short:

    with coalescer.turn(item) as turn:
        if turn.items:  # nobody else acted for it
            turn.results = act(turn.items)
    return turn.result

`PacedCoalescer` is for calls that must also be paced and counted, and led by a loop where
there is one (`serve`), so that no caller is held up by a database that does not answer.
"""

from __future__ import annotations

import copy
import random
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, TypeVar, cast

from metadata.errors import CatmqError, Code, MetadataUnavailable
from metadata.limits.concurrency import limiter

CHECK_S = 0.2  # how often one that waits checks whether that is in vain

Item = TypeVar("Item")
Result = TypeVar("Result")


class Turn(Generic[Item, Result]):
    """A caller's turn. Inside, `items` are those to act for, its own first; none if another
    caller did.

    `results` is set to what came of each item, in order. `result` is the caller's own: None
    if `results` was not set, or if several items failed together with an error after which
    each is to be tried alone.
    """

    __slots__ = (
        "_coalescer",
        "_together",
        "error",
        "event",
        "item",
        "leads",
        "result",
        "results",
    )

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
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        together = self._together
        self._together = []  # else a circle: its item would wait for the garbage collector
        if self._coalescer is not None and together:
            return self._coalescer.end(together, self.results, error)
        if self.results is not None and together:
            (self.result,) = self.results
        return False


class Coalescer(Generic[Item, Result]):
    """Lets one caller at a time act for all that wait; what it raises, each of them raises.

    `take` says how many of the waiting items fit into a batch that begins with the first
    one; at least that. A caller waits at most `limit_s` for its turn to begin, and
    `end_limit_s` more for its end; `check(item)` ends the former wait sooner by what it
    raises. After an error of `apart_after` each of several items is to be tried alone.
    """

    end_limit_s = 0.0

    def __init__(
        self,
        *,
        limit_s: float,
        take: Callable[[Sequence[Item]], int] = len,
        check: Callable[[Item], None] | None = None,
        apart_after: tuple[type[Exception], ...] = (),
    ) -> None:
        self._take, self._check, self._limit_s, self._apart_after = (
            take,
            check,
            limit_s,
            apart_after,
        )
        self._guard = threading.Lock()
        self._leading = False
        self._waiting: list[Turn[Item, Result]] = []

    def turn(self, item: Item, *, alone: bool = False) -> Turn[Item, Result]:
        """Return a caller's turn, to be entered and left; `alone`: at once, beside what
        others do.

        Entering raises what was raised for it by another caller, what `check` raised,
        `not_begun` or
        `not_ended`.
        """
        return Turn(item, None if alone else self)

    def waiting(self) -> int:
        """Number of callers that wait for the next batch."""
        return len(self._waiting)

    def not_begun(self) -> CatmqError:
        """Error of a caller whose turn did not begin in time."""
        return MetadataUnavailable(
            "The metadata database is slow to answer.", retry_after_ms=1000
        )

    def not_ended(self) -> CatmqError:
        """Error of a caller whose turn did not end in time: it may be written or not."""
        return self.not_begun()

    def line_up(self, turn: Turn[Item, Result]) -> list[Turn[Item, Result]]:
        """Wait, and return the turns that this one acts for, itself first; none if another
        acted for it.
        """
        with self._guard:
            self._join(turn)
        if turn.event is not None:
            with limiter.aside():
                self._wait(turn, turn.event)
            if not turn.leads:
                return []
        return self._gather([turn])

    def end(
        self,
        together: Sequence[Turn[Item, Result]],
        results: Sequence[Result] | None,
        error: BaseException | None,
    ) -> bool:
        """Tell turns what came of them, and hand over; return True if the error is not to
        be raised.
        """
        apart = len(together) > 1 and isinstance(error, self._apart_after)
        try:
            if error is None and results is not None:
                for one, result in zip(together, results, strict=True):
                    one.result = result
            elif error is not None and not apart:
                for one in together:
                    one.error = self._for_another(error)
        finally:
            with self._guard:
                self._hand_over()
            for one in together:
                if one.event is not None:
                    one.event.set()
        return apart

    def _for_another(self, error: BaseException) -> BaseException:
        """Return an error of its own for another thread: threads must not share a
        traceback.
        """
        # the thread that acted is ended; the others are not
        if not isinstance(error, Exception):
            return self.not_ended()
        other = copy.copy(error)
        other.__cause__ = error
        return other

    def _join(self, turn: Turn[Item, Result]) -> None:
        """Lead, or wait behind who leads. The caller holds the guard."""
        if self._leading:
            self._await_turn(turn)
        self._leading = True

    def _await_turn(self, turn: Turn[Item, Result]) -> None:
        turn.event = threading.Event()
        self._waiting.append(turn)

    def _wait(self, turn: Turn[Item, Result], event: threading.Event) -> None:
        refusal = self._begun(turn, event)
        if refusal is None:
            return
        with self._guard:
            if turn in self._waiting:
                self._waiting.remove(turn)
                raise refusal
        if not event.wait(self.end_limit_s):
            raise self.not_ended() if self.end_limit_s else refusal

    def _begun(self, turn: Turn[Item, Result], event: threading.Event) -> CatmqError | None:
        """Return None once the event is set; else the reason not to wait any longer."""
        end = time.monotonic() + self._limit_s
        while not event.wait(max(0.0, min(CHECK_S, end - time.monotonic()))):
            if time.monotonic() >= end:
                return self.not_begun()
            try:
                if self._check is not None:
                    self._check(turn.item)
            except CatmqError as error:
                return error
        return None

    def _gather(self, first: list[Turn[Item, Result]]) -> list[Turn[Item, Result]]:
        with self._guard:
            if not self._waiting:
                return first
            turns = [*first, *self._waiting]
            count = max(1, self._take([one.item for one in turns]))
            self._waiting = turns[count:]
            return turns[:count]

    def _hand_over(self) -> None:
        """Let the first that waits lead on. The caller holds the guard."""
        self._leading = bool(self._waiting)
        if self._waiting:
            following = self._waiting.pop(0)
            following.leads = True
            if following.event is not None:
                following.event.set()


class PacedCoalescer(Coalescer[Item, Result]):
    """Batches of at most `most` that begin every `every_s` seconds, or sooner when half of
    the places are taken; more callers than `places` are refused. Nobody waits longer than
    `limit_s`.

    `write` takes a batch and gives a result for each, in order; what it raises, each of
    them raises.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        every_s: float,
        most: int,
        places: int,
        limit_s: float,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(take=lambda _: most, check=lambda _: check(), limit_s=limit_s)
        self._write, self._every_s, self._places = write, every_s, places
        self._hurry = threading.Event()
        self._arrived = threading.Event()
        self._inside = 0
        self._served = False  # a loop leads
        self._began = float("-inf")
        self._writing_since: float | None = None

    def submit(self, item: Item) -> Result:
        """Return the result of `item`, once its batch was written.

        Raises what `write` or `check` raised, and MetadataUnavailable: no place is free, or
        it is slow.
        """
        with self._guard:
            if self._inside >= self._places:
                # At different times, or all that are refused now would come together again.
                again_ms = random.randint(500, 1500)
                raise MetadataUnavailable(
                    "Too many calls wait for the metadata database.",
                    code=Code.BUSY,
                    retry_after_ms=again_ms,
                )
            self._inside += 1
        try:
            with self.turn(item) as turn:
                if items := turn.items:
                    turn.results = self._write(items)
            return cast("Result", turn.result)
        finally:
            with self._guard:
                self._inside -= 1

    def serve(self, wait_s: float) -> None:
        """Write what waits, or comes within `wait_s`: one pass of a loop. From now on no
        caller leads.
        """
        self._served = True
        if not self._arrived.wait(wait_s):
            return
        with self._guard:
            self._arrived.clear()
            if self._leading or not self._waiting:
                return
            self._leading = True
        batch, results = self._gather([]), None
        error: BaseException | None = None
        try:
            results = self._write([one.item for one in batch]) if batch else ()
        except BaseException as failure:
            error = failure  # they raise it
            if not isinstance(failure, Exception):
                raise
        finally:
            self.end(batch, results, error)

    def wake(self) -> None:
        """End the wait that the loop is in, as if something had come."""
        self._arrived.set()

    def end_service(self) -> None:
        """Let callers lead again: the loop has ended."""
        with self._guard:
            self._served = False
            if not self._leading:
                self._hand_over()

    def stuck_s(self) -> float:
        """Return for how many seconds the batch under way has been."""
        since = self._writing_since
        return 0.0 if since is None else time.monotonic() - since

    def _join(self, turn: Turn[Item, Result]) -> None:
        if not self._served:
            super()._join(turn)
        else:
            self._await_turn(turn)

    def _await_turn(self, turn: Turn[Item, Result]) -> None:
        super()._await_turn(turn)
        self._arrived.set()
        if len(self._waiting) * 2 >= self._places:
            self._hurry.set()

    def _gather(self, first: list[Turn[Item, Result]]) -> list[Turn[Item, Result]]:
        """Return the next batch, after the pause that is still due since the last one
        began.
        """
        pause_s = self._began + self._every_s - time.monotonic()
        if pause_s > 0:
            with limiter.aside():
                self._hurry.wait(pause_s)
        self._hurry.clear()
        self._began = self._writing_since = time.monotonic()
        return super()._gather(first)

    def _hand_over(self) -> None:
        self._writing_since = None
        if not self._served:
            super()._hand_over()
        else:
            self._leading = False
            if self._waiting:
                self._arrived.set()
