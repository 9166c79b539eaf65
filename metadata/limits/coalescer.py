"""Many threads want the same kind of write at once: one of them does it for all.

A loop leads where there is one (`serve`): it takes what waits, at most `most` items, writes it in one go and
wakes their threads, so that none of them is held up by a database that does not answer. Elsewhere the first
thread that comes leads, then the first of those that came meanwhile. A lone item is written at once, and
batches begin at most every `every_s` seconds, or sooner when half of the places are taken. Nobody waits
longer than `limit_s`, or than `check` lets them; more than `places` are refused. Each thread waits for an
event of its own: hundreds that wake for every batch would only fight for the interpreter.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from metadata.errors import Code, MetadataUnavailable
from metadata.limits.concurrency import turnstile

CHECK_S = 0.1  # how often one that waits checks whether that is in vain

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Entry(Generic[Item, Result]):
    """One waiting item; `answer` gives its result or raises, None while it waits."""

    __slots__ = ("answer", "event", "item", "leads")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.answer: Callable[[], Result] | None = None
        self.leads = False
        self.event = threading.Event()


class Combiner(Generic[Item, Result]):
    """`write` takes a batch and gives a result for each, in order; what it raises, every item raises.

    `check` raises MetadataUnavailable when waiting is in vain.
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
        self._write, self._check = write, check
        self._every_s, self._most, self._places, self._limit_s = every_s, most, places, limit_s
        self._lock = threading.Lock()
        self._hurry = threading.Event()
        self._waiting: list[_Entry[Item, Result]] = []
        self._inside = 0
        self._leading = False
        self._served = False  # a loop leads
        self._arrived = threading.Event()
        self._began = float("-inf")
        self._writing_since: float | None = None

    def submit(self, item: Item) -> Result:
        """The result of `item`, once the batch that contains it was written. Raises MetadataUnavailable."""
        entry: _Entry[Item, Result] = _Entry(item)
        with self._lock:
            if self._inside >= self._places:
                # At different times, or all that are refused now would come together again.
                again_ms = random.randint(500, 1500)
                raise MetadataUnavailable(
                    "Too many calls wait for the metadata database.", code=Code.BUSY, retry_after_ms=again_ms
                )
            self._inside += 1
            self._waiting.append(entry)
            self._arrived.set()
            if not self._leading and not self._served:
                self._leading = entry.leads = True
            elif len(self._waiting) * 2 >= self._places:
                self._hurry.set()
        try:
            if not entry.leads:
                self._await(entry)
            if entry.leads:
                self._batch()
            if entry.answer is None:
                raise MetadataUnavailable("The metadata database is slow to answer.", retry_after_ms=1000)
            return entry.answer()
        finally:
            self._leave(entry)

    def serve(self, wait_s: float) -> None:
        """Writes what waits, or comes within `wait_s`: one pass of a loop. From now on no caller leads."""
        self._served = True
        if not self._arrived.wait(wait_s):
            return
        with self._lock:
            self._arrived.clear()
            if self._leading or not self._waiting:
                return
            self._leading = True
        self._batch()

    def end_service(self) -> None:
        """The loop has ended: callers lead again."""
        with self._lock:
            self._served = False
            if not self._leading:
                self._appoint()

    def stuck_s(self) -> float:
        """For how many seconds the batch under way has been."""
        since = self._writing_since
        return 0.0 if since is None else time.monotonic() - since

    def _await(self, entry: _Entry[Item, Result]) -> None:
        """Returns when there is an answer, or the entry's thread is to lead, or its time is up."""
        end = time.monotonic() + self._limit_s
        with turnstile.aside():
            while not entry.event.wait(max(0.0, min(CHECK_S, end - time.monotonic()))):
                if time.monotonic() >= end:
                    return
                self._check()

    def _leave(self, entry: _Entry[Item, Result]) -> None:
        with self._lock:
            self._inside -= 1
            if entry.answer is None and entry in self._waiting:
                self._waiting.remove(entry)
                if entry.leads:  # appointed when its time was up
                    self._appoint()

    def _appoint(self) -> None:
        """The first that waits leads on, or the loop does. The caller holds the lock."""
        self._leading = bool(self._waiting) and not self._served
        if self._waiting and self._served:
            self._arrived.set()
        elif self._waiting:
            self._waiting[0].leads = True
            self._waiting[0].event.set()

    def _batch(self) -> None:
        batch = self._gather()
        try:
            results = self._write([entry.item for entry in batch]) if batch else ()
            answers = [_giving(result) for result in results]
        except BaseException as error:
            answers = [_raising(error)] * len(batch)
            if not isinstance(error, Exception):
                raise
        finally:
            with self._lock:
                self._writing_since = None
                self._appoint()
            for entry, answer in zip(batch, answers, strict=True):
                entry.answer = answer
                entry.event.set()

    def _gather(self) -> list[_Entry[Item, Result]]:
        """The next batch, after the pause that is still due since the last one began."""
        pause_s = self._began + self._every_s - time.monotonic()
        if pause_s > 0:
            with turnstile.aside():
                self._hurry.wait(pause_s)
        with self._lock:
            self._hurry.clear()
            self._began = self._writing_since = time.monotonic()
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            return batch


def _giving(result: Result) -> Callable[[], Result]:
    return lambda: result


def _raising(error: BaseException) -> Callable[[], Any]:
    def answer() -> Any:
        raise error

    return answer
