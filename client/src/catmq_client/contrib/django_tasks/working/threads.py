"""The threads that run tasks, and the watchdog that abandons those that take too long.

A thread whose task returned does not wait until the result is written. A further thread
writes the results of all tasks that returned meanwhile in one statement. Then threads of the
pool do the rest (signals, the response to the broker), because signal receivers may be slow.
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

from catmq_client.contrib.django_tasks.working.attempts import (
    Attempt,
    ClaimedTask,
    Delivery,
)
from catmq_client.contrib.django_tasks.working.batching import MAX_ROWS
from catmq_client.contrib.django_tasks.working.execution import Execution

log: logging.Logger = logging.getLogger("catmq.tasks")

WATCH_S = 0.2
# If the database has not answered for STUCK_S, the worker counts as stuck, and logs it every
# WARN_EVERY_S.
STUCK_S, WARN_EVERY_S = 30.0, 30.0


class Threads:
    """A pool of `count` threads, each of which handles one message at a time.

    Python cannot stop a thread. A thread whose task exceeds its time limit is abandoned, and
    a new thread replaces it. After `max_lost` abandoned threads (default: `count`) the pool
    `is_worn_out`.
    """

    def __init__(
        self, count: int, execution: Execution, *, max_lost: int | None = None
    ) -> None:
        self.count = count
        self._max_lost = count if max_lost is None else max_lost
        self.is_worn_out: bool = False
        self._execution = execution
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._returned: queue.SimpleQueue[tuple[Attempt, Any] | None] = queue.SimpleQueue()
        # Guards the attributes below.
        self._changed = threading.Condition()
        # Threads that have no message, and deliveries that are not settled.
        self._idle = 0
        self._unsettled: list[Delivery] = []
        # By thread id: running attempts; threads whose delivery is settled by the writer of
        # results; abandoned threads.
        self._at_work: dict[int, Attempt] = {}
        self._relieved: set[int] = set()
        self._lost: set[int] = set()
        self._ends = False
        self._warn_at = 0.0
        execution.defer_result = self._queue_result
        for _ in range(count):
            self._start()
        threading.Thread(target=self._watch, name="catmq-task-clock", daemon=True).start()
        threading.Thread(
            target=self._write_results, name="catmq-task-ends", daemon=True
        ).start()

    def wait_for_idle(self, timeout_s: float) -> int:
        """Wait until a thread is idle. Return the number of messages that may be put."""
        with self._changed:
            self._changed.wait_for(lambda: self._room() > 0 or self.is_worn_out, timeout_s)
            return 0 if self.is_worn_out else self._room()

    def put(self, deliveries: Sequence[Delivery]) -> None:
        """Hand messages to idle threads; at most as many as wait_for_idle() returned.

        Their tasks are claimed here, in batches.
        """
        with self._changed:
            self._idle -= len(deliveries)
            self._unsettled += deliveries
        for batch in (
            deliveries[at : at + MAX_ROWS] for at in range(0, len(deliveries), MAX_ROWS)
        ):
            for delivery, claimed in zip(
                batch, self._execution.claim_all(batch), strict=True
            ):
                self._work.put(partial(self._handle, delivery, claimed))

    def attempt_began(self, attempt: Attempt) -> None:
        """Register the attempt of the calling thread with the watchdog."""
        with self._changed:
            self._at_work[threading.get_ident()] = attempt

    @property
    def lost(self) -> int:
        return len(self._lost)

    def is_busy(self) -> bool:
        with self._changed:
            return bool(self._unsettled)

    def running(self) -> list[str]:
        """Return the ids of the running tasks."""
        with self._changed:
            return [attempt.claim.job.id for attempt in self._at_work.values()]

    def is_stuck(self) -> bool:
        """Return True if the application's database does not answer. A connection that hangs
        raises no error.
        """
        return self._execution.waiting_s() > STUCK_S

    def drain(self, timeout_s: float) -> list[Delivery]:
        """Wait until all deliveries are settled, and end the threads. Return the deliveries
        that are not settled in time.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._unsettled, timeout_s)
            self._ends = True
            unsettled = [*self._unsettled]
        for _ in range(self.count):
            self._work.put(None)
        self._returned.put(None)
        return unsettled

    def _room(self) -> int:
        """Return the number of messages that may be put: the idle threads, or fewer while
        more than MAX_ROWS results wait to be written.
        """
        return min(self._idle, self.count + MAX_ROWS - len(self._unsettled))

    def _notify(self) -> None:
        """Wake wait_for_idle() or drain(), if it may return now. The caller holds the lock."""
        # Not after every message: waking a thread costs more than running a short task.
        if self._room() == 1 or not self._unsettled:
            self._changed.notify_all()

    def _start(self) -> None:
        with self._changed:
            self._idle += 1
        threading.Thread(target=self._run, name="catmq-task", daemon=True).start()

    def _run(self) -> None:
        thread_id = threading.get_ident()
        try:
            while (work := self._work.get()) is not None:
                try:
                    work()
                except BaseException:
                    log.exception("internal error in a thread of tasks; continuing")
                with self._changed:
                    # Abandoned: another thread has replaced this thread.
                    if thread_id in self._lost:
                        self._lost.discard(thread_id)
                        return
        finally:
            connections.close_all()

    def _handle(self, delivery: Delivery, claimed: ClaimedTask | None) -> None:
        thread_id = threading.get_ident()
        try:
            self._execution.handle(delivery, claimed)
        finally:
            with self._changed:
                self._at_work.pop(thread_id, None)
                # _abandon() has settled the delivery of a lost thread and replaced the thread.
                if thread_id not in self._lost:
                    self._idle += 1
                    # _settle() removes the delivery of a relieved thread.
                    if thread_id not in self._relieved:
                        self._unsettled.remove(delivery)
                    self._relieved.discard(thread_id)
                self._notify()

    def _queue_result(self, attempt: Attempt, value: Any) -> None:
        """Queue a task's result to be written, so that this thread is free for the next task."""
        with self._changed:
            self._relieved.add(threading.get_ident())
        self._returned.put((attempt, value))

    def _write_results(self) -> None:
        try:
            while (first := self._returned.get()) is not None:
                returned = [first]
                while len(returned) < MAX_ROWS and not self._returned.empty():
                    # Only this thread takes from the queue, so get() does not block.
                    if (result := self._returned.get()) is None:
                        self._returned.put(None)
                        break
                    returned.append(result)
                outcomes = self._execution.write_results(returned)
                for (attempt, value), is_written in zip(returned, outcomes, strict=True):
                    self._work.put(partial(self._settle, attempt, value, is_written))
        finally:
            connections.close_all()

    def _settle(self, attempt: Attempt, value: Any, is_written: bool | None) -> None:
        try:
            self._execution.settle(attempt, value, is_written)
        finally:
            with self._changed:
                self._unsettled.remove(attempt.delivery)
                self._notify()

    def _watch(self) -> None:
        while not self._ends:
            time.sleep(WATCH_S)
            try:
                now = time.monotonic()
                # Logged here: the thread that receives messages may be stuck itself.
                if self.is_stuck() and now >= self._warn_at:
                    self._warn_at = now + WARN_EVERY_S
                    log.error(
                        "the application's database has not answered for %.0f s; a health "
                        "file is left to age",
                        self._execution.waiting_s(),
                    )
                with self._changed:
                    late = [
                        (thread_id, attempt)
                        for thread_id, attempt in self._at_work.items()
                        if attempt.deadline is not None
                        and attempt.deadline <= now
                        and thread_id not in self._lost
                    ]
                for thread_id, attempt in late:
                    self._abandon(thread_id, attempt)
            except Exception:
                log.exception("internal error in the clock of tasks; continuing")
            finally:
                connections.close_all()

    def _abandon(self, thread_id: int, attempt: Attempt) -> None:
        """Write a timeout as the attempt's outcome and replace its thread."""
        with self._changed:
            # Under the lock: the task may return at this moment. end() is True for only one
            # of the two.
            if self._at_work.get(thread_id) is not attempt or not attempt.end():
                return
            self._lost.add(thread_id)
            self._unsettled.remove(attempt.delivery)
            self.is_worn_out = len(self._lost) >= self._max_lost
            self._changed.notify_all()
        error = attempt.timeout_error()
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
