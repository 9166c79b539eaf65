"""run() with coroutines: calls the handler in tasks of an event loop; see CoroutineRun."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from catmq_client.callables import check_handled, name_of
from catmq_client.errors import HandlerFailed, HandlerTimeout
from catmq_client.loops import LoopBell, call_in_loop
from catmq_client.message import Message
from catmq_client.reading.dispatcher import Dispatcher, Job
from catmq_client.reading.outcomes import Outcomes
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.state import GroupState

log: logging.Logger = logging.getLogger("catmq.consumer")

CoroutineHandler = (
    Callable[[Any], Awaitable[object]] | Callable[[list[Any]], Awaitable[object]]
)

# Longest sleep without work, s.
IDLE_S = 1.0
# Interval of the check whether a revoked queue must be released soon, s.
REVOKED_CHECK_S = 0.25
# The handlers of a revoked queue are cancelled when this fraction of rebalance_timeout_ms is
# left, but at most MAX_END_S. They use it to end before the queue is released.
END_FRACTION = 1 / 6
MAX_END_S = 5.0
# A loop that does not answer for this time is blocked.
BLOCKED_S = 1.0
# Frames of the stack that is logged then, the innermost.
STACK_LINES = 5


class CoroutineRun:
    """Takes messages from the consumer and calls the handler in tasks of the running loop.

    A *turn* records the tasks that have ended, dispatches new messages, and starts tasks in
    the free places. Each of these three takes a lock once for all its messages. Between turns
    the loop runs the tasks. Without work, the run waits for a bell, which rings for new
    messages, for slots of the dispatcher that become ready, and for each task that ends. (A
    slot has messages that are handled in order; see dispatcher.py.)

    A *task* is an asyncio task here: a call of the handler, for the messages of a job. Each
    of these messages is a *part* (the dispatcher's class Task, in Job.tasks).

    Everything here runs in the loop's thread, except two threads. The timer finds handlers
    that take longer than handler_timeout_ms. The watch logs handlers that block the loop.
    """

    def __init__(
        self,
        *,
        state: GroupState,
        dispatcher: Dispatcher,
        outcomes: Outcomes,
        handler: CoroutineHandler,
        concurrency: int,
        batch: int | None,
    ) -> None:
        """`concurrency` is the number of handlers at work at once.

        With `batch` the handler gets a list of at most that many messages.
        """
        self._state = state
        self._dispatcher = dispatcher
        self._outcomes = outcomes
        self._handler = handler
        self._concurrency, self._batch_limit = concurrency, batch
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._run_task = asyncio.current_task()
        # Each task gets a copy, as if run() had called the handler.
        self._context = contextvars.copy_context()
        self._bell = LoopBell()
        self._jobs: dict[asyncio.Task[None], Job] = {}
        self._ended_tasks: list[asyncio.Task[None]] = []
        # Jobs whose task was cancelled: after the time limit, or because their messages are
        # to be given back.
        self._overdue_jobs: set[Job] = set()
        self._returned_jobs: set[Job] = set()
        self._revoked_check_at = 0.0
        self._is_over = threading.Event()
        # SystemExit, or the like, that a handler raised: run() raises it again.
        self.handler_exit: BaseException | None = None
        state.threads = concurrency
        state.on_settings = self._follow_settings
        state.on_withdrawn = self._withdraw

    async def run(
        self,
        *,
        hand_out: Callable[[], list[tuple[OwnedQueue, Message]]],
        run_callbacks: Callable[[], Awaitable[object]],
        end_timeout_s: float,
    ) -> None:
        """Call the handler until stop(), or until all queues have halted.

        After stop(), handlers at work may finish for `end_timeout_s`. Then, or at once if
        this coroutine is cancelled, they are cancelled and their messages are given back.
        """
        state, bell = self._state, self._bell
        for body, name in (
            (self._watch_deadlines, "catmq-handler-clock"),
            (self._watch_loop, "catmq-loop-watch"),
        ):
            threading.Thread(target=body, name=name, daemon=True).start()
        state.changed.messages.add_bell(bell)
        self._dispatcher.work.add_bell(bell)
        try:
            while not state.stopping and not state.all_halted():
                await run_callbacks()
                if self._turn(hand_out):
                    # The tasks run now.
                    await asyncio.sleep(0)
                    continue
                # Armed before the last look, so that later work rings the bell.
                bell.arm()
                if not self._turn(hand_out) and state.next_callback() is None:
                    await bell.wait(REVOKED_CHECK_S if self._jobs else IDLE_S)
            self._end_dispatching()
            await self._await_tasks(end_timeout_s)
        finally:
            # Again for an exception or a cancellation that left the loop above. A second call
            # changes nothing.
            self._end_dispatching()
            try:
                await self._cancel_tasks(end_timeout_s)
            finally:
                self._is_over.set()
                state.changed.messages.remove_bell(bell)
                self._dispatcher.work.remove_bell(bell)

    def _turn(self, hand_out: Callable[[], list[tuple[OwnedQueue, Message]]]) -> bool:
        """Record ended tasks, and start others. Return False if there was nothing to do."""
        has_ended = self._record_ended()
        taken = hand_out()
        if taken:
            self._dispatcher.dispatch(taken)
        self._cancel_tasks_of_revoked_queues()
        return self._start_tasks() or has_ended or bool(taken)

    # Tasks that begin.

    def _start_tasks(self) -> bool:
        """Start tasks for the messages that may be handled now. Return True for any."""
        state, dispatcher = self._state, self._dispatcher
        # Operators may change both sizes while run() works.
        free = (state.limits.threads or self._concurrency) - len(self._jobs)
        if free <= 0 or state.stopping or not state.has_lease():
            return False
        batch = 1
        if self._batch_limit is not None:
            batch = state.limits.handler_batch or self._batch_limit
        jobs = dispatcher.take_ready(free, batch)
        if not jobs:
            return False
        # Barred: queues that were lost, revoked or stopped since the jobs were taken.
        begun_jobs: list[Job] = []
        barred_jobs: list[Job] = []
        with state.changed:
            has_lease = state.has_lease()
            for job in jobs:
                # `worker` is any number that no other job at work has.
                may_begin = has_lease and self._outcomes.begin(job, worker=id(job))
                (begun_jobs if may_begin else barred_jobs).append(job)
        for job in barred_jobs:
            dispatcher.give_back(job)
        for job in begun_jobs:
            # A copy for each task: a variable that a handler sets is seen by no other.
            task = self._loop.create_task(
                self._call(job), name="catmq-handler", context=self._context.copy()
            )
            self._jobs[task] = job
            task.add_done_callback(self._note_ended)
        return bool(begun_jobs)

    async def _call(self, job: Job) -> None:
        messages = [part.message for part in job.tasks if not part.message.failed]
        # There are none if fail() was called for all, in a batch that raised afterwards.
        if messages:
            argument: Any = messages[0] if self._batch_limit is None else messages
            check_handled(await self._handler(argument))

    # Tasks that end.

    def _note_ended(self, task: asyncio.Task[None]) -> None:
        self._ended_tasks.append(task)
        self._bell.ring_in_loop()

    def _record_ended(self) -> bool:
        """Record the outcomes of the tasks that have ended. Return True for any."""
        if not self._ended_tasks:
            return False
        tasks, self._ended_tasks = self._ended_tasks, []
        succeeded_jobs: list[Job] = []
        for task in tasks:
            job = self._jobs.pop(task)
            if job.deadline is not None:
                self._dispatcher.remove_deadline(job)
            is_returned = job in self._returned_jobs
            self._returned_jobs.discard(job)
            error = self._error_of(task, job)
            if error is None:
                succeeded_jobs.append(job)
            elif is_returned or isinstance(error, asyncio.CancelledError):
                self._give_back(job)
            elif isinstance(error, Exception):
                self._outcomes.fail(job, error)
            else:
                self._outcomes.end_work(job)
                self.handler_exit = self.handler_exit or error
                self._state.stopping = True
        if succeeded_jobs:
            self._outcomes.succeed(succeeded_jobs)
        return True

    def _error_of(self, task: asyncio.Task[None], job: Job) -> BaseException | None:
        """Return the outcome of an ended task as an error:

            None             the handler has returned
            HandlerTimeout   this run has cancelled it after handler_timeout_ms
            CancelledError   this run, or the end of the loop, has cancelled it: its messages
                             are to be given back
            HandlerFailed    something else has cancelled it

        Any other error was raised by the handler.
        """
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if job in self._overdue_jobs:
            self._overdue_jobs.discard(job)
            limit_ms = self._state.settings_of(job.tasks[0].owned).handler_timeout_ms
            timeout = HandlerTimeout(
                f"the handler did not return within {(limit_ms or 0) / 1000:g} s"
            )
            timeout.__cause__ = error
            return timeout
        # The end of a loop cancels all tasks in one go, in any order. So a handler may end
        # before the cancellation has reached run(), but run() is marked already.
        is_run_ending = self._run_task is not None and self._run_task.cancelling() > 0
        if (
            isinstance(error, asyncio.CancelledError)
            and job not in self._returned_jobs
            and not self._state.stopping
            and not is_run_ending
        ):
            # For example, something that the handler waited for was cancelled.
            return HandlerFailed("the handler was cancelled, and not by its consumer")
        return error

    def _give_back(self, job: Job) -> None:
        """Give back the messages of a handler that was cancelled."""
        state = self._state
        with state.changed:
            for part in job.tasks:
                if not part.owned.lost:
                    state.return_unfinished(part.owned, part.message.offset)
            self._outcomes.abandon(job)

    # Tasks that are cancelled.

    def _withdraw(self, owned: OwnedQueue, offsets: Collection[int] | None) -> None:
        """Cancel the handlers of messages that another member may get now.

        Called under the state's lock, by any thread.
        """
        if owned.at_work:
            call_in_loop(self._loop, self._cancel_withdrawn, owned, offsets)

    def _cancel_withdrawn(self, owned: OwnedQueue, offsets: Collection[int] | None) -> None:
        for task, job in self._jobs.items():
            if any(
                part.owned is owned and (offsets is None or part.message.offset in offsets)
                for part in job.tasks
            ):
                self._cancel(task, job, self._returned_jobs)

    def _cancel_tasks_of_revoked_queues(self) -> None:
        """Cancel the handlers of queues that must be released soon."""
        now = time.monotonic()
        if now < self._revoked_check_at:
            return
        self._revoked_check_at = now + REVOKED_CHECK_S
        end_s = min(
            MAX_END_S, self._state.options.rebalance_timeout_ms / 1000 * END_FRACTION
        )
        for task, job in self._jobs.items():
            if any(
                now > (part.owned.revoked_until or math.inf) - end_s for part in job.tasks
            ):
                self._cancel(task, job, self._returned_jobs)

    def _watch_deadlines(self) -> None:
        """Have handlers cancelled that take too long. Body of the timer thread."""
        while not self._dispatcher.ending:
            try:
                for job in self._dispatcher.wait_for_overdue_jobs():
                    # Otherwise the dispatcher returns it again at once.
                    self._dispatcher.remove_deadline(job)
                    call_in_loop(self._loop, self._cancel_overdue, job)
            except Exception:
                log.exception("internal error in the timer of run(); continuing")

    def _cancel_overdue(self, job: Job) -> None:
        for task, running_job in self._jobs.items():
            if running_job is job and job not in self._returned_jobs:
                log.error(
                    "%s: the handler of %r did not return in time: it is cancelled",
                    name_of(self._handler),
                    job.tasks[0].message,
                )
                self._cancel(task, job, self._overdue_jobs)
                return

    def _cancel(self, task: asyncio.Task[None], job: Job, cancelled_jobs: set[Job]) -> None:
        """Cancel a task once. A task that has ended keeps its result."""
        is_cancelled = job in self._returned_jobs or job in self._overdue_jobs
        if not is_cancelled and task.cancel("by the consumer"):
            cancelled_jobs.add(job)

    # The end.

    def _end_dispatching(self) -> None:
        state = self._state
        with state.changed:
            state.stopping = True
            state.changed.notify_all()
        self._dispatcher.end()

    async def _await_tasks(self, timeout_s: float) -> None:
        """Record outcomes until no task is left, for at most `timeout_s` seconds."""
        give_up_at = time.monotonic() + timeout_s
        while True:
            self._bell.arm()
            self._record_ended()
            self._cancel_tasks_of_revoked_queues()
            left_s = give_up_at - time.monotonic()
            if not self._jobs or left_s <= 0:
                return
            await self._bell.wait(min(left_s, REVOKED_CHECK_S))

    async def _cancel_tasks(self, timeout_s: float) -> None:
        """Cancel all tasks, and wait until they have ended."""
        for task, job in self._jobs.items():
            self._cancel(task, job, self._returned_jobs)
        await self._await_tasks(timeout_s)
        if self._jobs:
            log.error(
                "%d handlers (%s) do not end although they are cancelled; their messages "
                "are delivered again",
                len(self._jobs),
                name_of(self._handler),
            )

    # Settings, and the watch.

    def _follow_settings(self) -> None:
        """Apply changed settings. Called under the state's lock."""
        state = self._state
        self._dispatcher.close_breakers(
            topic
            for topic, settings in state.settings.items()
            if settings.breaker_failures is None
        )
        state.threads = state.limits.threads or self._concurrency
        self._bell.ring()

    def _watch_loop(self) -> None:
        """Log handlers that block the loop. Body of the watch's thread."""
        while not self._is_over.wait(BLOCKED_S):
            if not self._jobs:
                continue
            answered = threading.Event()
            if not call_in_loop(self._loop, answered.set):
                return
            if answered.wait(BLOCKED_S):
                continue
            self._warn_of_blocked_loop()
            # A warning for each time that the loop is blocked.
            while not answered.wait(BLOCKED_S) and not self._is_over.is_set():
                pass

    def _warn_of_blocked_loop(self) -> None:
        task = asyncio.current_task(self._loop)
        job = self._jobs.get(task) if task is not None else None
        frame = sys._current_frames().get(self._loop_thread)
        if job is None or frame is None:
            return  # other code of the program blocks its loop
        log.warning(
            "%s blocks the event loop for more than %g s, with %r: nothing else runs "
            "meanwhile. Await what takes long, or call it by asyncio.to_thread(). It is in\n%s",
            name_of(self._handler),
            BLOCKED_S,
            job.tasks[0].message,
            "".join(traceback.format_stack(frame, limit=STACK_LINES)),
        )
