"""The threads that run tasks, and the clock that gives up those that take too long.

A thread whose task returned does not wait until that is written. One more thread writes the
ends of all tasks that returned meanwhile by one statement, and what follows (signals, the
answer to the broker) is work for the threads again: it may be slow, as tasks may.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.db import connections

from catmq_client.contrib.django_tasks.working.attempts import Attempt, Begun, Delivery
from catmq_client.contrib.django_tasks.working.batching import MOST
from catmq_client.contrib.django_tasks.working.execution import Execution

log = logging.getLogger("catmq.tasks")

CLOCK_S = 0.2
# The database owes an answer for so long: the worker is not well, and says so this often.
STUCK_S, WARN_EVERY_S = 30.0, 30.0


class Threads:
    """So many threads, of which each handles one message at a time.

    Python cannot stop a thread. One whose task takes longer than it may is left alone, and
    another takes its place; if that has happened `most_lost` times (default: as often as
    there are threads),
    `is_worn_out`.
    """

    def __init__(
        self, count: int, execution: Execution, *, most_lost: int | None = None
    ) -> None:
        self.count = count
        self._most_lost = count if most_lost is None else most_lost
        self.is_worn_out = False
        self._execution = execution
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._returned: queue.SimpleQueue[tuple[Attempt, Any] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        # Threads that may take a message, and what was put and is not done.
        self._idle = 0
        self._left: list[Delivery] = []
        # By thread: attempts under way; whose task returned, so that others do the rest;
        # who was given up.
        self._at_work: dict[int, Attempt] = {}
        self._relieved: set[int] = set()
        self._lost: set[int] = set()
        self._ends = False
        self._warn_at = 0.0
        execution.later = self._return
        for _ in range(count):
            self._start()
        threading.Thread(target=self._watch, name="catmq-task-clock", daemon=True).start()
        threading.Thread(
            target=self._write_ends, name="catmq-task-ends", daemon=True
        ).start()

    def wait_for_idle(self, timeout_s: float) -> int:
        """Return how many messages may be put; waits until there is room for one."""
        with self._changed:
            self._changed.wait_for(lambda: self._room() > 0 or self.is_worn_out, timeout_s)
            return 0 if self.is_worn_out else self._room()

    def put(self, deliveries: Sequence[Delivery]) -> None:
        """Hand messages to threads, which are idle: not more than there is room for.

        Their tasks are claimed here, all by one statement.
        """
        with self._changed:
            self._idle -= len(deliveries)
            self._left += deliveries
        for some in (deliveries[at : at + MOST] for at in range(0, len(deliveries), MOST)):
            for delivery, begun in zip(some, self._execution.begin_all(some), strict=True):
                self._work.put(partial(self._handle, delivery, begun))

    def begun(self, attempt: Attempt) -> None:
        """Note what a thread does; the clock watches it."""
        with self._changed:
            self._at_work[threading.get_ident()] = attempt

    @property
    def lost(self) -> int:
        return len(self._lost)

    def is_busy(self) -> bool:
        with self._changed:
            return bool(self._left)

    def running(self) -> list[str]:
        """Return the ids of the tasks at work."""
        with self._changed:
            return [attempt.claim.job.id for attempt in self._at_work.values()]

    def is_stuck(self) -> bool:
        """Return True if the application's database does not answer: such a connection
        raises nothing.
        """
        return self._execution.waiting_s() > STUCK_S

    def drain(self, timeout_s: float) -> list[Delivery]:
        """Wait for what is at work; return what is not done by then."""
        with self._changed:
            self._changed.wait_for(lambda: not self._left, timeout_s)
            self._ends = True
            left = [*self._left]
        for _ in range(self.count):
            self._work.put(None)
        self._returned.put(None)
        return left

    def _room(self) -> int:
        """Return how many threads are idle; fewer while many ends are to be written."""
        return min(self._idle, self.count + MOST - len(self._left))

    def _tell(self) -> None:
        """Wake who waits for room or for the end. The caller holds the lock.

        Only if there may be news for it: to wake a thread costs more than what a short task
        does.
        """
        if self._room() == 1 or not self._left:
            self._changed.notify_all()

    def _start(self) -> None:
        with self._changed:
            self._idle += 1
        threading.Thread(target=self._run, name="catmq-task", daemon=True).start()

    def _run(self) -> None:
        me = threading.get_ident()
        try:
            while (work := self._work.get()) is not None:
                try:
                    work()
                except BaseException:
                    log.exception("internal error in a thread of tasks; continuing")
                if self._is_replaced(me):
                    return
        finally:
            connections.close_all()

    def _handle(self, delivery: Delivery, begun: Begun | None) -> None:
        me = threading.get_ident()
        try:
            self._execution.handle(delivery, begun)
        finally:
            with self._changed:
                self._at_work.pop(me, None)
                if me not in self._lost:
                    self._idle += 1
                    if me not in self._relieved:
                        self._left.remove(delivery)
                    self._relieved.discard(me)
                self._tell()

    def _is_replaced(self, me: int) -> bool:
        """Return True if another thread took this one's place."""
        with self._changed:
            was_lost = me in self._lost
            self._lost.discard(me)
            return was_lost

    def _return(self, attempt: Attempt, value: Any) -> None:
        """Let the end of a task be written, and go on with the next one."""
        with self._changed:
            self._relieved.add(threading.get_ident())
        self._returned.put((attempt, value))

    def _write_ends(self) -> None:
        try:
            while (first := self._returned.get()) is not None:
                returned = [first]
                while len(returned) < MOST and not self._returned.empty():
                    # Only this thread takes from it.
                    if (one := self._returned.get()) is None:
                        self._returned.put(None)
                        break
                    returned.append(one)
                ends = self._execution.write_ends(returned)
                for (attempt, value), is_written in zip(returned, ends, strict=True):
                    self._work.put(partial(self._settle, attempt, value, is_written))
        finally:
            connections.close_all()

    def _settle(self, attempt: Attempt, value: Any, is_written: bool | None) -> None:
        try:
            self._execution.settle(attempt, value, is_written)
        finally:
            with self._changed:
                self._left.remove(attempt.delivery)
                self._tell()

    def _watch(self) -> None:
        while not self._ends:
            time.sleep(CLOCK_S)
            try:
                self._warn_if_stuck()
                for me, attempt in self._late():
                    self._give_up(me, attempt)
            except Exception:
                log.exception("internal error in the clock of tasks; continuing")
            finally:
                connections.close_all()

    def _warn_if_stuck(self) -> None:
        """Say it from here: the thread that takes messages may be one of those that wait."""
        if not self.is_stuck() or time.monotonic() < self._warn_at:
            return
        self._warn_at = time.monotonic() + WARN_EVERY_S
        what = (
            "the application's database has not answered for %.0f s; a health file is "
            "left to age"
        )
        log.error(what, self._execution.waiting_s())

    def _late(self) -> list[tuple[int, Attempt]]:
        now = time.monotonic()
        with self._changed:
            return [
                (me, one)
                for me, one in self._at_work.items()
                if one.deadline is not None and one.deadline <= now and me not in self._lost
            ]

    def _give_up(self, me: int, attempt: Attempt) -> None:
        with self._changed:
            # In one step: the thread may be coming back by itself.
            if self._at_work.get(me) is not attempt or not attempt.end():
                return
            self._lost.add(me)
            self._left.remove(attempt.delivery)
            self.is_worn_out = len(self._lost) >= self._most_lost
            self._changed.notify_all()
        error = attempt.timed_out()
        log.error(
            "%s: its thread is left alone, %d of %d are now",
            error,
            len(self._lost),
            self.count,
        )
        if not self._execution.end(attempt, error):
            attempt.delivery.release()
        if not self.is_worn_out:
            self._start()
