"""Coalescer: calls that arrive while another call runs are done together by the next.

The first caller becomes the leader: it acts at once, for itself. Callers that arrive
meanwhile wait. Then the first of them becomes the leader, and acts for all that wait and
fit into its batch. A lone caller pays for a lock. Each caller waits for an event of its
own, because hundreds that wake up for every batch would only compete for the interpreter.

The leader acts in its own frame, so that the call stack from a request to the database
stays short:

    with coalescer.turn(item) as turn:
        if turn.items:  # no other caller acted for it
            turn.results = act(turn.items)
    return turn.result

`PacedCoalescer` also limits how often batches begin and how many callers may wait. A loop
may be its leader (`serve`), so that no caller is held up by a database that does not
answer.
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

CHECK_S = 0.2  # interval at which a waiting caller calls `check`

Item = TypeVar("Item")
Result = TypeVar("Result")


class Turn(Generic[Item, Result]):
    """A caller's turn, a context manager.

    Inside, `items` are those to act for, the caller's own first, or none if another caller
    acted for it. The caller sets `results`, a result for each item in order. `result` is the
    caller's own result. It is None if `results` was not set, or if several items failed
    together with an error after which each must be tried alone.
    """

    __slots__ = (
        "_batch",
        "_coalescer",
        "error",
        "event",
        "item",
        "leads",
        "result",
        "results",
    )

    def __init__(self, item: Item, coalescer: Coalescer[Item, Result] | None) -> None:
        self.item = item
        self.event: threading.Event | None = None  # set when the turn leads or has ended
        self.leads = False
        self.error: BaseException | None = None
        self.result: Result | None = None
        self.results: Sequence[Result] | None = None
        self._coalescer = coalescer
        self._batch: list[Turn[Item, Result]] = [self]

    @property
    def items(self) -> list[Item]:
        return [turn.item for turn in self._batch]

    def __enter__(self) -> Turn[Item, Result]:
        if self._coalescer is not None:
            self._batch = self._coalescer.line_up(self)
            if self.error is not None:
                raise self.error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        batch = self._batch
        # The batch contains this turn. The cycle would keep its item until the next garbage
        # collection.
        self._batch = []
        if self._coalescer is not None and batch:
            return self._coalescer.end(batch, self.results, error)
        if self.results is not None and batch:
            (self.result,) = self.results
        return False


class Coalescer(Generic[Item, Result]):
    """Lets a single caller act for all callers that wait. An error that it raises is raised
    by each of them.

    `take` returns how many of the waiting items fit into a batch, at least 1. A caller
    waits at most `limit_s` for its turn to begin, and `end_limit_s` more for its
    end. `check(item)` may raise an error that ends the wait for the begin sooner. After an
    error of the types `apart_after`, each of several items must be tried alone.
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
        self._has_leader = False
        self._waiting: list[Turn[Item, Result]] = []

    def turn(self, item: Item, *, alone: bool = False) -> Turn[Item, Result]:
        """Return a caller's turn, to be used in a `with` statement. `alone`: it begins at
        once and takes no other items.

        Entering raises the error of the caller that acted for it, what `check` raised,
        `not_begun` or `not_ended`.
        """
        return Turn(item, None if alone else self)

    def waiting(self) -> int:
        """Return the number of callers that wait for the next batch."""
        return len(self._waiting)

    def not_begun(self) -> CatmqError:
        """Return the error of a caller whose turn did not begin in time."""
        return MetadataUnavailable(
            "The metadata database is slow to answer.", retry_after_ms=1000
        )

    def not_ended(self) -> CatmqError:
        """Return the error of a caller whose turn did not end in time: the outcome is
        unknown.
        """
        return self.not_begun()

    def line_up(self, turn: Turn[Item, Result]) -> list[Turn[Item, Result]]:
        """Wait for the turn. Return the turns that it acts for, itself first, or none if
        another caller acted for it.
        """
        with self._guard:
            self._join(turn)
        if turn.event is not None:
            with limiter.aside():
                self._wait(turn, turn.event)
            if not turn.leads:
                return []
        return self._collect_batch([turn])

    def end(
        self,
        batch: Sequence[Turn[Item, Result]],
        results: Sequence[Result] | None,
        error: BaseException | None,
    ) -> bool:
        """Give each turn its result or error, and choose the next leader. Return True if
        the leader itself must not raise the error, because each item is tried alone.
        """
        apart = len(batch) > 1 and isinstance(error, self._apart_after)
        try:
            if error is None and results is not None:
                for turn, result in zip(batch, results, strict=True):
                    turn.result = result
            elif error is not None and not apart:
                for turn in batch:
                    # SystemExit and the like end the leader's thread only.
                    if not isinstance(error, Exception):
                        turn.error = self.not_ended()
                        continue
                    # A copy, because threads must not share a traceback.
                    turn.error = copy.copy(error)
                    turn.error.__cause__ = error
        finally:
            # In any case, or all later callers would wait until their limit.
            with self._guard:
                self._hand_over()
            for turn in batch:
                if turn.event is not None:
                    turn.event.set()
        return apart

    def _join(self, turn: Turn[Item, Result]) -> None:
        """Become the leader, or wait for the present leader. The caller holds the guard."""
        if self._has_leader:
            self._await_turn(turn)
        self._has_leader = True

    def _await_turn(self, turn: Turn[Item, Result]) -> None:
        turn.event = threading.Event()
        self._waiting.append(turn)

    def _wait(self, turn: Turn[Item, Result], event: threading.Event) -> None:
        end = time.monotonic() + self._limit_s
        refusal: CatmqError | None = None
        while refusal is None:
            if event.wait(max(0.0, min(CHECK_S, end - time.monotonic()))):
                return
            try:
                if time.monotonic() >= end:
                    refusal = self.not_begun()
                elif self._check is not None:
                    self._check(turn.item)
            except CatmqError as error:
                refusal = error
        with self._guard:
            # Only a turn that no leader has taken can be given up without effect.
            if turn in self._waiting:
                self._waiting.remove(turn)
                raise refusal
        if not event.wait(self.end_limit_s):
            raise self.not_ended() if self.end_limit_s else refusal

    def _collect_batch(self, first: list[Turn[Item, Result]]) -> list[Turn[Item, Result]]:
        with self._guard:
            if not self._waiting:
                return first
            turns = [*first, *self._waiting]
            count = max(1, self._take([turn.item for turn in turns]))
            self._waiting = turns[count:]
            return turns[:count]

    def _hand_over(self) -> None:
        """Make the first waiting turn the leader. The caller holds the guard."""
        self._has_leader = bool(self._waiting)
        if self._waiting:
            leader = self._waiting.pop(0)
            leader.leads = True
            if leader.event is not None:
                leader.event.set()


class PacedCoalescer(Coalescer[Item, Result]):
    """Batches of at most `most` items. A batch begins every `every_s` seconds, or sooner when
    half of the places are taken. More callers than `places` are refused. None waits longer
    than `limit_s`.

    `write` gets a batch and returns a result for each item, in order. An error that it
    raises is raised by each caller of the batch.
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
        self._half_full = threading.Event()  # ends the pause between two batches
        self._arrived = threading.Event()  # wakes the loop
        self._inside = 0
        self._served = False  # a loop is the leader
        self._began = float("-inf")
        self._writing_since: float | None = None

    def submit(self, item: Item) -> Result:
        """Wait until a batch with `item` was written, and return its result.

        Raises what `write` or `check` raised, and MetadataUnavailable if no place is free
        or the database is slow.
        """
        with self._guard:
            if self._inside >= self._places:
                # Random, or all that are refused now would come back at the same time.
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
        """Write the waiting items, or those that arrive within `wait_s`. Called again and
        again by a loop. From now on no caller becomes the leader.
        """
        self._served = True
        if not self._arrived.wait(wait_s):
            return
        with self._guard:
            self._arrived.clear()
            # A caller that became the leader before the loop began may still act.
            if self._has_leader or not self._waiting:
                return
            self._has_leader = True
        batch, results = self._collect_batch([]), None
        error: BaseException | None = None
        try:
            results = self._write([turn.item for turn in batch]) if batch else ()
        except BaseException as failure:
            error = failure  # raised by the callers, not by the loop
            if not isinstance(failure, Exception):
                raise
        finally:
            self.end(batch, results, error)

    def wake(self) -> None:
        """End the wait of the loop in serve(), as if an item had arrived."""
        self._arrived.set()

    def end_service(self) -> None:
        """Let callers become the leader again, because the loop has ended."""
        with self._guard:
            self._served = False
            if not self._has_leader:
                self._hand_over()

    def stuck_s(self) -> float:
        """Return for how many seconds the present batch has been written, 0 without a batch."""
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
            self._half_full.set()

    def _collect_batch(self, first: list[Turn[Item, Result]]) -> list[Turn[Item, Result]]:
        """Return the next batch, after the rest of the pause since the last began."""
        pause_s = self._began + self._every_s - time.monotonic()
        if pause_s > 0:
            with limiter.aside():
                self._half_full.wait(pause_s)
        self._half_full.clear()
        self._began = self._writing_since = time.monotonic()
        return super()._collect_batch(first)

    def _hand_over(self) -> None:
        self._writing_since = None
        if not self._served:
            super()._hand_over()
        else:
            # The loop is the next leader: it only has to wake up.
            self._has_leader = False
            if self._waiting:
                self._arrived.set()
