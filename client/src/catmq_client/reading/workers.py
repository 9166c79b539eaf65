"""The threads of run(): they call the handler.

The outcomes of calls are handled in outcomes.py. Python cannot stop a thread, so the thread
of a handler that takes longer than the subscription's handler_timeout_ms is left alone, and
another thread takes its place. At most as many threads are replaced as run() has.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from catmq_client.callables import check_handled
from catmq_client.errors import HandlerTimeout
from catmq_client.reading.dispatcher import Dispatcher, Job
from catmq_client.reading.outcomes import Outcomes
from catmq_client.reading.state import GroupState

log: logging.Logger = logging.getLogger("catmq.consumer")


class Workers:
    """Threads that take jobs from the dispatcher."""

    def __init__(
        self,
        *,
        state: GroupState,
        dispatcher: Dispatcher,
        outcomes: Outcomes,
        handler: Callable[[Any], object],
        threads: int,
        batch: int | None,
    ) -> None:
        """Start the threads.

        With `batch` the handler gets a list of at most that many messages.
        """
        self._state = state
        self._dispatcher = dispatcher
        self._outcomes = outcomes
        self._handler = handler
        self._requested_threads, self._batch_limit = threads, batch
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._stuck: dict[int, str] = {}
        self._thread_count = 0
        # SystemExit, or the like, that a handler raised: run() raises it again.
        self.handler_exit: BaseException | None = None
        state.on_settings = self._follow_settings
        self._resize()
        self._timer = threading.Thread(
            target=self._watch_deadlines, name="catmq-handler-clock", daemon=True
        )
        self._timer.start()

    def drain(self, timeout_s: float) -> None:
        """Let handlers at work finish, for at most `timeout_s`, and start no more."""
        self._dispatcher.end()
        with self._state.changed:
            self._state.changed.notify_all()
        give_up_at = time.monotonic() + timeout_s
        for thread in [*self._threads, self._timer]:
            if thread.ident not in self._stuck:
                thread.join(max(0.0, give_up_at - time.monotonic()))

    def _follow_settings(self) -> None:
        """Apply changed settings. Called under the state's lock."""
        self._dispatcher.close_breakers(
            topic
            for topic, settings in self._state.settings.items()
            if settings.breaker_failures is None
        )
        self._resize()

    def _resize(self) -> None:
        """Start or end threads, so that their number follows the settings."""
        with self._lock:
            thread_count = self._state.limits.threads or self._requested_threads
            added, self._thread_count = thread_count - self._thread_count, thread_count
            self._state.threads = thread_count
        if added < 0:
            self._dispatcher.retire_workers(-added)
        for _ in range(added):
            self._start_thread()

    def _start_thread(self) -> None:
        thread = threading.Thread(
            target=self._work, name=f"catmq-handler-{next(self._numbers)}", daemon=True
        )
        with self._lock:
            self._threads = [t for t in self._threads if t.is_alive() or t.ident is None]
            self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        """Handle jobs until the worker is to end. Body of a thread."""
        while True:
            batch = 1
            if self._batch_limit is not None:
                # Operators may change the size while run() works.
                batch = self._state.limits.handler_batch or self._batch_limit
            job = self._dispatcher.take(batch)
            if job is None:
                return
            try:
                self._handle(job)
            # SystemExit in a handler must end run(), not only this thread.
            except BaseException as error:  # noqa: BLE001
                with self._state.changed:
                    self.handler_exit = self.handler_exit or error
                    self._state.stopping = True
                    self._state.changed.notify_all()
                return
            with self._lock:
                if self._stuck.pop(threading.get_ident(), None):
                    # The job has expired meanwhile, and another thread has taken the place
                    # of this thread.
                    return

    def _handle(self, job: Job) -> None:
        if not self._begin_job(job):
            self._dispatcher.give_back(job)
            return
        error: BaseException | None = None
        try:
            messages = [task.message for task in job.tasks if not task.message.failed]
            # There are none if fail() was called for all, in a batch that raised
            # afterwards.
            if messages:
                argument: Any = messages[0] if self._batch_limit is None else messages
                check_handled(self._handler(argument))
        # Whatever a handler raises is the failure of its message.
        except Exception as raised:  # noqa: BLE001
            error = raised
        except BaseException:
            if self._dispatcher.claim_outcome(job):
                self._outcomes.end_work(job)
            raise
        if self._dispatcher.claim_outcome(job):
            if error is None:
                self._outcomes.succeed([job])
            else:
                self._outcomes.fail(job, error)

    def _begin_job(self, job: Job) -> bool:
        """Wait for the lease and note that the handler begins.

        Return False if a queue of the job has been lost, revoked or stopped meanwhile.
        """
        state, dispatcher = self._state, self._dispatcher
        with state.changed:
            if not state.has_lease():
                state.changed.wait_for(
                    lambda: any(map(dispatcher.is_barred, job.tasks)) or state.has_lease()
                )
            return self._outcomes.begin(job, worker=threading.get_ident())

    def _watch_deadlines(self) -> None:
        """Expire jobs whose handlers take too long. Body of the timer thread."""
        while not self._dispatcher.ending:
            try:
                for job in self._dispatcher.wait_for_overdue_jobs():
                    self._expire(job)
            except Exception:
                log.exception("internal error in the timer of run(); continuing")

    def _expire(self, job: Job) -> None:
        """Fail the message of a handler that took too long, and replace its thread."""
        limit_s = (job.deadline or 0.0) - job.began
        name = next((t.name for t in self._threads if t.ident == job.worker), "?")
        with self._lock:
            may_replace = len(self._stuck) < self._thread_count
        if not may_replace:
            # Otherwise handlers that all hang would start threads without limit.
            self._dispatcher.remove_deadline(job)
            log.error("%s is also stuck, and no further thread may be replaced", name)
            return
        # The handler has returned in the meantime.
        if not self._dispatcher.claim_outcome(job):
            return
        with self._lock:
            self._stuck[job.worker] = name
        log.error(
            "%s: the handler of %r did not return within %.1f s: its thread is replaced",
            name,
            job.tasks[0].message,
            limit_s,
        )
        self._start_thread()
        self._outcomes.fail(
            job, HandlerTimeout(f"the handler did not return within {limit_s:g} s")
        )
