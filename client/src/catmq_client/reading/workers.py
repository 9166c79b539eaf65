"""The threads of run(): they call the handler, and decide what follows when it fails.

A handler has failed when it raises, or does not return within the subscription's
handler_timeout_ms. Then

- in an ordered subscription the message is retried in place, after the subscription's
  pauses (at most
  ORDERED_PAUSE_S each), and its slot waits; when its retries are used up it goes to the
  dead letters;
- in any other it is reported, and comes again later from the retry topic; before that it is
  tried
  handler_attempts times in place, if the option says more than 1.

A batch that fails is handled again message by message. The thread of a handler that takes
too long is left alone, because Python cannot stop it, and another takes its place; at most
as many as there are threads.
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
from catmq_client.message import Message
from catmq_client.reading.dispatcher import Dispatcher, Job, Task
from catmq_client.reading.failure_reports import Reporter
from catmq_client.reading.state import GroupState
from catmq_client.reading.subscription_settings import Settings
from catmq_client.telemetry.process_report import AtWork
from catmq_client.telemetry.traces import Traces

log = logging.getLogger("catmq.consumer")

Handler = Callable[[Message], object] | Callable[[list[Message]], object]
# Longest pause before a retry in place: the queue, or key, stands still meanwhile.
ORDERED_PAUSE_S = 30.0
# Tries of a message at least that cannot be handed over: its group broadcasts, or there is
# no retry node.
TRIES_IN_PLACE = 3


class Workers:
    """Threads that take jobs from the dispatcher."""

    def __init__(
        self,
        *,
        state: GroupState,
        dispatcher: Dispatcher,
        reporter: Reporter,
        traces: Traces,
        handler: Handler,
        threads: int,
        batch: int | None,
    ) -> None:
        """`batch` None: the handler gets a message; else a list of at most so many."""
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
        self._told_threads, self._told_batch = threads, batch
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._stuck: dict[int, str] = {}
        self._wanted = 0
        # A handler that ended by SystemExit or the like: run() ends with it.
        self.broken: BaseException | None = None
        state.on_settings = self._follow_settings
        self._resize()
        self._clock = threading.Thread(
            target=self._watch, name="catmq-handler-clock", daemon=True
        )
        self._clock.start()

    def drain(self, timeout_s: float) -> None:
        """Let handlers at work finish, for at most `timeout_s`, and start no more."""
        self._dispatcher.end()
        with self._state.changed:
            self._state.changed.notify_all()
        give_up_at = time.monotonic() + timeout_s
        for thread in [*self._threads, self._clock]:
            if thread.ident not in self._stuck:
                thread.join(max(0.0, give_up_at - time.monotonic()))

    def _follow_settings(self) -> None:
        """Called under the state's lock."""
        settings = self._state.settings
        self._dispatcher.close_breakers(
            t for t, one in settings.items() if one.breaker_failures is None
        )
        self._resize()

    def _resize(self) -> None:
        with self._lock:
            wanted = self._state.limits.threads or self._told_threads
            change, self._wanted = wanted - self._wanted, wanted
            self._state.threads = wanted
        if change < 0:
            self._dispatcher.dismiss(-change)
        for _ in range(change):
            self._start_one()

    def _start_one(self) -> None:
        name = f"catmq-handler-{next(self._numbers)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        with self._lock:
            self._threads = [
                one for one in self._threads if one.is_alive() or one.ident is None
            ]
            self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while (job := self._dispatcher.take(self._batch())) is not None:
            try:
                self._handle(job)
            except BaseException as error:  # noqa: BLE001 - SystemExit in a handler must end run(), not just a thread
                self._break(error)
                return
            with self._lock:
                if self._stuck.pop(threading.get_ident(), None):
                    # Somebody else took this one's place.
                    return

    def _batch(self) -> int:
        if self._told_batch is None:
            return 1
        return self._state.limits.handler_batch or self._told_batch

    def _handle(self, job: Job) -> None:
        if not self._begin(job):
            self._dispatcher.back(job)
            return
        error: BaseException | None = None
        try:
            self._call(job)
        except Exception as raised:  # noqa: BLE001 - whatever a handler raises is its message's failure
            error = raised
        except BaseException:
            if self._dispatcher.close(job):
                self._leave(job)
            raise
        if self._dispatcher.close(job):
            self._ended(job, error)

    def _begin(self, job: Job) -> bool:
        """Wait for the lease; False when a queue of the job is not ours to work on, or
        stopped.
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
            settings = state.settings_of(job.tasks[0].owned)
            limit_ms = settings.handler_timeout_ms
            dispatcher.begin(job, None if limit_ms is None else limit_ms / 1000)
            first = job.tasks[0].message
            state.handlers[job.thread] = AtWork(job.began, first.queue, first.offset)
            return True

    def _call(self, job: Job) -> None:
        messages = [task.message for task in job.tasks if not task.message.failed]
        if not messages:
            # Given up by fail() in a batch that raised afterwards.
            return
        argument: Any = messages[0] if self._told_batch is None else messages
        check_handled(self._handler(argument))

    def _ended(self, job: Job, error: BaseException | None) -> None:
        settings = self._state.settings_of(job.tasks[0].owned)
        if settings.trace_percent and (error is None or len(job.tasks) == 1):
            self._trace(job, settings.trace_percent, failed=error is not None)
        if error is None:
            self._after_success(job, settings)
        elif len(job.tasks) > 1:
            log.warning(
                "the handler failed with %d messages: retrying one by one",
                len(job.tasks),
                exc_info=error,
            )
            self._leave(job)
            self._dispatcher.back(job, alone=True)
        else:
            self._after_failure(job, settings, error)

    def _trace(self, job: Job, percent: int, *, failed: bool) -> None:
        for task in job.tasks:
            failed = failed or task.message.failed
            self._traces.add(task.message, percent=percent, began=job.began, failed=failed)

    def _after_success(self, job: Job, settings: Settings) -> None:
        state = self._state
        given_up = any(task.message.failed for task in job.tasks)
        # In one step: a queue that is idle is released, and must know of its last message
        # by then.
        with state.changed:
            for task in job.tasks:
                state.finish(task.owned, task.message.offset, task.version)
            self._leave(job)
        if given_up:
            self._tell_breaker(job, settings)
        elif self._dispatcher.succeeded(job):
            log.warning("%s: the handler works again", job.tasks[0].owned.subscription)
        self._dispatcher.done(job)

    def _after_failure(self, job: Job, settings: Settings, error: BaseException) -> None:
        task, slot = job.tasks[0], job.slot
        slot.tries += 1
        log.warning(
            "%r: the handler failed, try %d", task.message, slot.tries, exc_info=error
        )
        state = self._state
        with state.changed:
            state.failed += 1
            later_s = self._retry_in_place_s(task, settings, slot.tries)
            if self._dispatcher.is_void(task):
                later_s = 0.0
            elif later_s is None and task.owned.subscription in state.in_place:
                self._halt(task, slot.tries, error)
            elif later_s is None:
                self._reporter.add(task.owned, task.message, error, last=settings.ordered)
            self._leave(job)
        self._tell_breaker(job, settings)
        if later_s is None:
            self._dispatcher.done(job)
        else:
            task.message.tries = slot.tries if settings.ordered else 0
            self._dispatcher.back(job, later_s=later_s)

    def _retry_in_place_s(self, task: Task, settings: Settings, tries: int) -> float | None:
        """The pause before the next try in place after so many; None when there is none."""
        if settings.ordered:
            return (
                None
                if tries > settings.retries
                else min(ORDERED_PAUSE_S, settings.pause_s(tries))
            )
        options = self._state.options
        in_place = task.owned.subscription in self._state.in_place
        if tries >= max(options.handler_attempts, TRIES_IN_PLACE if in_place else 1):
            return None
        base_s, max_s = options.retry_backoff_ms / 1000, options.retry_backoff_max_ms / 1000
        return delay_s(tries - 1, base_s=base_s, max_s=max_s)

    def _halt(self, task: Task, tries: int, error: BaseException) -> None:
        """There is nowhere to put the message: going on would lose it."""
        detail = (
            f"{task.message!r}: the handler failed {tries} times, its queue is "
            f"stopped: {error!r}"
        )
        failure = HandlerFailed(detail)
        failure.__cause__ = error
        log.error("%s", detail)
        self._state.halt(task.owned, failure)

    def _tell_breaker(self, job: Job, settings: Settings) -> None:
        if self._dispatcher.failed(job, settings):
            topic, pause_s = job.tasks[0].owned.subscription, settings.breaker_pause_s
            what = (
                "%s: the handler keeps failing: paused for %d s, then one message is tried"
            )
            log.error(what, topic, pause_s)

    def _leave(self, job: Job) -> None:
        state = self._state
        with state.changed:
            state.handlers.pop(job.thread, None)
            for task in job.tasks:
                task.owned.running -= 1
                if task.owned.revoked_until is not None:
                    state.changed.notify_all()

    def _watch(self) -> None:
        while not self._dispatcher.ending:
            try:
                for job in self._dispatcher.tick():
                    self._give_up(job)
            except Exception:
                log.exception("internal error in the timer of run(); continuing")

    def _give_up(self, job: Job) -> None:
        """A handler took too long: its message failed, its thread is left alone."""
        limit_s = (job.deadline or 0.0) - job.began
        name = next((one.name for one in self._threads if one.ident == job.thread), "?")
        with self._lock:
            may_leave = len(self._stuck) < self._wanted
        if not may_leave:
            self._dispatcher.unlimit(job)
            log.error("%s is also stuck, and no further thread may be replaced", name)
            return
        if not self._dispatcher.close(job):
            return
        with self._lock:
            self._stuck[job.thread] = name
        what = "%s: the handler of %r did not return within %.1f s: its thread is replaced"
        log.error(what, name, job.tasks[0].message, limit_s)
        self._start_one()
        self._ended(job, HandlerTimeout(f"the handler did not return within {limit_s:g} s"))

    def _break(self, error: BaseException) -> None:
        with self._state.changed:
            self.broken = self.broken or error
            self._state.stopping = True
            self._state.changed.notify_all()
