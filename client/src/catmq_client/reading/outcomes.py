"""Begin and outcome of the calls of a handler of run(), in threads or coroutines.

A handler has failed when it raises, or does not return within the subscription's
handler_timeout_ms. Then

* in an ordered subscription the message is retried in place, after the subscription's pauses
  (at most ORDERED_PAUSE_S each), and its slot waits. When the retries are used up, the message
  becomes a dead letter;
* in any other subscription the failure is reported, and the message comes again from the retry
  topic. Before that it is tried in place handler_attempts times, if that option is above 1.

If a batch fails, its messages are handled again alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from catmq_client.errors import HandlerFailed
from catmq_client.http.backoff import delay_s
from catmq_client.reading.dispatcher import Dispatcher, Job
from catmq_client.reading.failure_reports import Reporter
from catmq_client.reading.state import GroupState
from catmq_client.reading.subscription_settings import Settings
from catmq_client.telemetry.process_report import AtWork
from catmq_client.telemetry.traces import Traces

log: logging.Logger = logging.getLogger("catmq.consumer")

# Longest pause before a retry in place: the queue, or the key, is held up meanwhile.
ORDERED_PAUSE_S = 30.0
# Minimum tries of a message that cannot be reported, because its group is broadcasting or
# there is no retry node.
MIN_TRIES_IN_PLACE = 3


class Outcomes:
    """Records the begin and the outcome of jobs. Any thread may call it."""

    def __init__(
        self,
        *,
        state: GroupState,
        dispatcher: Dispatcher,
        reporter: Reporter,
        traces: Traces,
    ) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._reporter = reporter
        self._traces = traces

    def begin(self, job: Job, *, worker: int) -> bool:
        """Note that the handler is called now. Called under the state's lock.

        Return False if a queue of the job has been lost, revoked or stopped meanwhile.
        """
        state, dispatcher = self._state, self._dispatcher
        if any(map(dispatcher.is_barred, job.tasks)):
            return False
        for task in job.tasks:
            task.owned.begin(task.message.offset)
        limit_ms = state.settings_of(job.tasks[0].owned).handler_timeout_ms
        dispatcher.begin(job, None if limit_ms is None else limit_ms / 1000, worker=worker)
        first = job.tasks[0].message
        state.handlers[worker] = AtWork(job.began, first.queue, first.offset)
        return True

    def succeed(self, jobs: Sequence[Job]) -> None:
        """Finish the messages of handlers that returned."""
        state, dispatcher = self._state, self._dispatcher
        for job in jobs:
            self._trace(job, error=None)
        # Under the same lock: the committer releases a revoked queue as soon as no handler
        # is at work, and must commit its last message before.
        with state.changed:
            for job in jobs:
                for task in job.tasks:
                    state.finish(task.owned, task.message.offset, task.version)
                self.end_work(job)
        for job in jobs:
            if any(task.message.failed for task in job.tasks):
                self._report_failure_to_breaker(job)
            elif dispatcher.record_success(job):
                log.warning("%s: the handler works again", job.tasks[0].owned.subscription)
        dispatcher.done(*jobs)

    def fail(self, job: Job, error: BaseException) -> None:
        """Handle the messages of a failed job again: in place, or from the retry topic."""
        if len(job.tasks) > 1:
            log.warning(
                "the handler failed with %d messages: retrying one by one",
                len(job.tasks),
                exc_info=error,
            )
            self.end_work(job)
            self._dispatcher.give_back(job, alone=True)
        else:
            self._trace(job, error)
            self._after_failure(job, error)

    def abandon(self, job: Job) -> None:
        """Note that a handler has ended without an outcome, so nothing is counted."""
        self.end_work(job)
        self._dispatcher.give_back(job)

    def _trace(self, job: Job, error: BaseException | None) -> None:
        percent = self._state.settings_of(job.tasks[0].owned).trace_percent
        if not percent:
            return
        for task in job.tasks:
            self._traces.add(
                task.message,
                percent=percent,
                began=job.began,
                failed=error is not None or task.message.failed,
            )

    def _after_failure(self, job: Job, error: BaseException) -> None:
        """Retry the message in place, report it, or halt its queue."""
        task, slot = job.tasks[0], job.slot
        settings = self._state.settings_of(task.owned)
        slot.tries += 1
        log.warning(
            "%r: the handler failed, try %d", task.message, slot.tries, exc_info=error
        )
        state = self._state
        with state.changed:
            state.failed += 1
            pause_s = self._retry_pause_s(job, settings)
            if self._dispatcher.is_void(task):
                pause_s = 0.0
            elif pause_s is None and task.owned.subscription in state.no_retry_topics:
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
            self.end_work(job)
        self._report_failure_to_breaker(job)
        if pause_s is None:
            self._dispatcher.done(job)
        else:
            task.message.tries = slot.tries if settings.ordered else 0
            self._dispatcher.give_back(job, pause_s=pause_s)

    def _retry_pause_s(self, job: Job, settings: Settings) -> float | None:
        """Return the pause before the next try in place, s. None if there is none."""
        slot, options = job.slot, self._state.options
        has_no_retry_topic = job.tasks[0].owned.subscription in self._state.no_retry_topics
        min_tries = MIN_TRIES_IN_PLACE if has_no_retry_topic else 1
        if settings.ordered and slot.tries <= settings.retries:
            return min(ORDERED_PAUSE_S, settings.pause_s(slot.tries))
        if not settings.ordered and slot.tries < max(options.handler_attempts, min_tries):
            return delay_s(
                slot.tries - 1,
                base_s=options.retry_backoff_ms / 1000,
                max_s=options.retry_backoff_max_ms / 1000,
            )
        return None

    def _report_failure_to_breaker(self, job: Job) -> None:
        settings = self._state.settings_of(job.tasks[0].owned)
        if self._dispatcher.record_failure(job, settings):
            log.error(
                "%s: the handler keeps failing: paused for %d s, then one message is tried",
                job.tasks[0].owned.subscription,
                settings.breaker_pause_s,
            )

    def end_work(self, job: Job) -> None:
        """Note that the handler of a job is not at work any more."""
        state = self._state
        with state.changed:
            state.handlers.pop(job.worker, None)
            for task in job.tasks:
                task.owned.at_work -= 1
                if task.owned.revoked_until is not None:
                    state.changed.notify_all()
