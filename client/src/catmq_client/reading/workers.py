"""The threads of run(): they call the handler, and handle its failures.

A handler has failed when it raises, or does not return within the subscription's
handler_timeout_ms. Then

* in an ordered subscription the message is retried in place, after the subscription's pauses
  (at most ORDERED_PAUSE_S each), and its slot waits. When the retries are used up, the message
  becomes a dead letter;
* in any other subscription the failure is reported, and the message comes again from the retry
  topic. Before that it is tried in place handler_attempts times, if that option is above 1.

If a batch fails, its messages are handled again alone. Python cannot stop a thread, so the
thread of a handler that takes too long is left alone and another thread takes its place. At
most as many threads are replaced as run() has.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from catmq_client.callables import check_handled
from catmq_client.errors import HandlerFailed, HandlerTimeout, OptionError
from catmq_client.http.backoff import delay_s
from catmq_client.reading.dispatcher import Dispatcher, Job
from catmq_client.reading.failure_reports import Reporter
from catmq_client.reading.state import GroupState
from catmq_client.reading.subscription_settings import Settings
from catmq_client.telemetry.process_report import AtWork
from catmq_client.telemetry.traces import Traces

log = logging.getLogger("catmq.consumer")

# Longest pause before a retry in place: the queue, or the key, is held up meanwhile.
ORDERED_PAUSE_S = 30.0
# Minimum tries of a message that cannot be reported, because its group is broadcasting or
# there is no retry node.
MIN_TRIES_IN_PLACE = 3


class Workers:
    """Threads that take jobs from the dispatcher."""

    def __init__(
        self,
        *,
        state: GroupState,
        dispatcher: Dispatcher,
        reporter: Reporter,
        traces: Traces,
        handler: Callable[[Any], object],
        threads: int,
        batch: int | None,
    ) -> None:
        """Start the threads.

        With `batch` the handler gets a list of at most that many messages.
        """
        if threads < 1:
            raise OptionError(f"threads={threads}: write at least 1")
        if batch is not None and batch < 1:
            raise OptionError(
                f"batch={batch}: write at least 1, or None for one message at a time"
            )
        self._state = state
        self._dispatcher = dispatcher
        self._reporter = reporter
        self._traces = traces
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
                self._end_work(job)
            raise
        if self._dispatcher.claim_outcome(job):
            self._finish_job(job, error)

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
            if any(map(dispatcher.is_barred, job.tasks)):
                return False
            for task in job.tasks:
                task.owned.begin(task.message.offset)
            limit_ms = state.settings_of(job.tasks[0].owned).handler_timeout_ms
            dispatcher.begin(job, None if limit_ms is None else limit_ms / 1000)
            first = job.tasks[0].message
            state.handlers[job.thread] = AtWork(job.began, first.queue, first.offset)
            return True

    def _finish_job(self, job: Job, error: BaseException | None) -> None:
        settings = self._state.settings_of(job.tasks[0].owned)
        if settings.trace_percent and (error is None or len(job.tasks) == 1):
            for task in job.tasks:
                self._traces.add(
                    task.message,
                    percent=settings.trace_percent,
                    began=job.began,
                    failed=error is not None or task.message.failed,
                )
        if error is None:
            state = self._state
            has_failed_messages = any(task.message.failed for task in job.tasks)
            # Under the same lock: the committer releases a revoked queue as soon as no
            # handler is at work, and must commit its last message before.
            with state.changed:
                for task in job.tasks:
                    state.finish(task.owned, task.message.offset, task.version)
                self._end_work(job)
            if has_failed_messages:
                self._report_failure_to_breaker(job, settings)
            elif self._dispatcher.record_success(job):
                log.warning("%s: the handler works again", job.tasks[0].owned.subscription)
            self._dispatcher.done(job)
        elif len(job.tasks) > 1:
            log.warning(
                "the handler failed with %d messages: retrying one by one",
                len(job.tasks),
                exc_info=error,
            )
            self._end_work(job)
            self._dispatcher.give_back(job, alone=True)
        else:
            self._after_failure(job, settings, error)

    def _after_failure(self, job: Job, settings: Settings, error: BaseException) -> None:
        """Retry the message in place, report it, or halt its queue."""
        task, slot = job.tasks[0], job.slot
        slot.tries += 1
        log.warning(
            "%r: the handler failed, try %d", task.message, slot.tries, exc_info=error
        )
        state = self._state
        with state.changed:
            state.failed += 1
            # The pause before the next try in place; None if there is none.
            pause_s: float | None = None
            options = state.options
            has_no_retry_topic = task.owned.subscription in state.no_retry_topics
            min_tries = MIN_TRIES_IN_PLACE if has_no_retry_topic else 1
            if settings.ordered and slot.tries <= settings.retries:
                pause_s = min(ORDERED_PAUSE_S, settings.pause_s(slot.tries))
            elif not settings.ordered and slot.tries < max(
                options.handler_attempts, min_tries
            ):
                pause_s = delay_s(
                    slot.tries - 1,
                    base_s=options.retry_backoff_ms / 1000,
                    max_s=options.retry_backoff_max_ms / 1000,
                )
            if self._dispatcher.is_void(task):
                pause_s = 0.0
            elif pause_s is None and has_no_retry_topic:
                detail = (
                    f"{task.message!r}: the handler failed {slot.tries} times, its queue is "
                    f"stopped: {error!r}"
                )
                failure = HandlerFailed(detail)
                failure.__cause__ = error
                log.error("%s", detail)
                state.halt(task.owned, failure)
            elif pause_s is None:
                self._reporter.add(task.owned, task.message, error, last=settings.ordered)
            self._end_work(job)
        self._report_failure_to_breaker(job, settings)
        if pause_s is None:
            self._dispatcher.done(job)
        else:
            task.message.tries = slot.tries if settings.ordered else 0
            self._dispatcher.give_back(job, pause_s=pause_s)

    def _report_failure_to_breaker(self, job: Job, settings: Settings) -> None:
        if self._dispatcher.record_failure(job, settings):
            log.error(
                "%s: the handler keeps failing: paused for %d s, then one message is tried",
                job.tasks[0].owned.subscription,
                settings.breaker_pause_s,
            )

    def _end_work(self, job: Job) -> None:
        """Note that the handler of a job is not at work any more."""
        state = self._state
        with state.changed:
            state.handlers.pop(job.thread, None)
            for task in job.tasks:
                task.owned.at_work -= 1
                if task.owned.revoked_until is not None:
                    state.changed.notify_all()

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
        name = next((t.name for t in self._threads if t.ident == job.thread), "?")
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
            self._stuck[job.thread] = name
        log.error(
            "%s: the handler of %r did not return within %.1f s: its thread is replaced",
            name,
            job.tasks[0].message,
            limit_s,
        )
        self._start_thread()
        self._finish_job(
            job, HandlerTimeout(f"the handler did not return within {limit_s:g} s")
        )
