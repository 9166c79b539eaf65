"""Calls that come while one runs are done together by the next.

The first caller acts at once, for itself. Who comes meanwhile waits; then the first of those leads the next
batch, for all that wait and fit into it. A lone caller pays for one lock. Each waits for an event of its own:
hundreds that wake for every batch would only fight for the interpreter.

`PacedCoalescer` is for calls that must also be paced and counted, and led by a loop where there is one
(`serve`), so that no caller is held up by a database that does not answer.
"""

from __future__ import annotations

import copy
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from metadata.errors import CatmqError, Code, MetadataUnavailable
from metadata.limits.concurrency import limiter

CHECK_S = 0.2  # how often one that waits checks whether that is in vain

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Entry(Generic[Item, Result]):
    """One caller; `results` holds its result, or `error` what it is to raise."""

    __slots__ = ("error", "event", "item", "leads", "results")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.event: threading.Event | None = None  # of one that waits
        self.leads = False
        self.results: list[Result] = []
        self.error: BaseException | None = None

    def outcome(self) -> Result:
        if self.error is not None:
            raise self.error
        return self.results[0]

    def wake(self) -> None:
        if self.event is not None:
            self.event.set()


class Coalescer(Generic[Item, Result]):
    """`write` takes a batch and gives a result for each, in order; what it raises, each of them raises.

    `take` says how many of the waiting items fit into a batch that begins with the first one; at least that.
    A caller waits at most `limit_s` for its batch to begin, and `end_limit_s` more for its end; `check(item)`
    ends the former wait sooner by what it raises.
    """

    end_limit_s = 0.0

    def __init__(
        self,
        write: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        take: Callable[[Sequence[Item]], int] = len,
        check: Callable[[Item], None] | None = None,
        limit_s: float,
    ) -> None:
        self._write, self._take, self._check = write, take, check
        self._limit_s = limit_s
        self._guard = threading.Lock()
        self._leading = False
        self._waiting: list[_Entry[Item, Result]] = []

    def submit(self, item: Item) -> Result:
        """Return the result of `item`, once its batch was written. Raises what `write` or `check` raised, or
        `not_begun` or `not_ended`."""
        entry: _Entry[Item, Result] = _Entry(item)
        with self._guard:
            self._join(entry)
        if entry.event is not None:
            with limiter.aside():
                self._wait(entry, entry.event)
        if entry.event is None or entry.leads:
            self._lead(entry)
        return entry.outcome()

    def waiting(self) -> int:
        """Number of callers that wait for the next batch."""
        return len(self._waiting)

    def not_begun(self) -> CatmqError:
        """Error of a caller whose batch did not begin in time."""
        return MetadataUnavailable("The metadata database is slow to answer.", retry_after_ms=1000)

    def not_ended(self) -> CatmqError:
        """Error of a caller whose batch did not end in time: it may be written or not."""
        return self.not_begun()

    def _join(self, entry: _Entry[Item, Result]) -> None:
        """Lead, or wait behind who leads. The caller holds the guard."""
        if self._leading:
            self._await_turn(entry)
        self._leading = True

    def _await_turn(self, entry: _Entry[Item, Result]) -> None:
        entry.event = threading.Event()
        self._waiting.append(entry)

    def _wait(self, entry: _Entry[Item, Result], event: threading.Event) -> None:
        refusal = self._begun(entry, event)
        if refusal is None:
            return
        with self._guard:
            if entry in self._waiting:
                self._waiting.remove(entry)
                raise refusal
        if not event.wait(self.end_limit_s):
            raise self.not_ended() if self.end_limit_s else refusal

    def _begun(self, entry: _Entry[Item, Result], event: threading.Event) -> CatmqError | None:
        """Return None once the event is set; else the reason not to wait any longer."""
        end = time.monotonic() + self._limit_s
        while not event.wait(max(0.0, min(CHECK_S, end - time.monotonic()))):
            if time.monotonic() >= end:
                return self.not_begun()
            try:
                if self._check is not None:
                    self._check(entry.item)
            except CatmqError as error:
                return error
        return None

    def _lead(self, first: _Entry[Item, Result] | None) -> None:
        """Write a batch, for `first` and others or only for others, and hand over."""
        batch = self._gather(first)
        try:
            results = self._write([one.item for one in batch]) if batch else ()
            for one, result in zip(batch, results, strict=True):
                one.results.append(result)
        except Exception as error:  # noqa: BLE001  they raise it
            for one in batch:  # each one of its own: threads must not share a traceback
                one.error = copy.copy(error)
                one.error.__cause__ = error
            if first is not None:
                first.error = error
        except BaseException:  # this thread is ended; the others are not
            for one in batch:
                one.error = self.not_ended()
            raise
        finally:
            with self._guard:
                self._hand_over()
            for one in batch:
                one.wake()

    def _gather(self, first: _Entry[Item, Result] | None) -> list[_Entry[Item, Result]]:
        entries = [] if first is None else [first]
        with self._guard:
            if not self._waiting:
                return entries
            entries += self._waiting
            count = max(1, self._take([one.item for one in entries]))
            self._waiting = entries[count:]
            return entries[:count]

    def _hand_over(self) -> None:
        """Let the first that waits lead on. The caller holds the guard."""
        self._leading = bool(self._waiting)
        if self._waiting:
            following = self._waiting.pop(0)
            following.leads = True
            following.wake()


class PacedCoalescer(Coalescer[Item, Result]):
    """Batches of at most `most` that begin every `every_s` seconds, or sooner when half of the places are
    taken; more callers than `places` are refused. Nobody waits longer than `limit_s`."""

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
        super().__init__(write, take=lambda _: most, check=lambda _: check(), limit_s=limit_s)
        self._every_s, self._places = every_s, places
        self._hurry = threading.Event()
        self._arrived = threading.Event()
        self._inside = 0
        self._served = False  # a loop leads
        self._began = float("-inf")
        self._writing_since: float | None = None

    def submit(self, item: Item) -> Result:
        """See Coalescer.submit. Raises MetadataUnavailable while no place is free."""
        with self._guard:
            if self._inside >= self._places:
                # At different times, or all that are refused now would come together again.
                again_ms = random.randint(500, 1500)
                raise MetadataUnavailable(
                    "Too many calls wait for the metadata database.", code=Code.BUSY, retry_after_ms=again_ms
                )
            self._inside += 1
        try:
            return super().submit(item)
        finally:
            with self._guard:
                self._inside -= 1

    def serve(self, wait_s: float) -> None:
        """Write what waits, or comes within `wait_s`: one pass of a loop. From now on no caller leads."""
        self._served = True
        if not self._arrived.wait(wait_s):
            return
        with self._guard:
            self._arrived.clear()
            if self._leading or not self._waiting:
                return
            self._leading = True
        self._lead(None)

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

    def _join(self, entry: _Entry[Item, Result]) -> None:
        if not self._served:
            super()._join(entry)
        else:
            self._await_turn(entry)

    def _await_turn(self, entry: _Entry[Item, Result]) -> None:
        super()._await_turn(entry)
        self._arrived.set()
        if len(self._waiting) * 2 >= self._places:
            self._hurry.set()

    def _gather(self, first: _Entry[Item, Result] | None) -> list[_Entry[Item, Result]]:
        """Return the next batch, after the pause that is still due since the last one began."""
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
