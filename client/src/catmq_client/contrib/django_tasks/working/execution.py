"""Execution of one delivery of a task: claim the task, call it, write its outcome, and only
then accept the message.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from django.conf import settings as django_settings
from django.db import (
    DatabaseError,
    InterfaceError,
    OperationalError,
    close_old_connections,
    reset_queries,
)

from catmq_client.contrib.django_tasks.compat import (
    TaskContext,
    task_backends,
    task_finished,
    task_started,
)
from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.contrib.django_tasks.jobs import (
    MAX_BYTES,
    Job,
    WrongMessage,
    parse,
    send_job,
    to_storable_json,
)
from catmq_client.contrib.django_tasks.models import TaskRecord
from catmq_client.contrib.django_tasks.task import (
    AnyResult,
    AnyTask,
    TaskMissing,
    find_task,
)
from catmq_client.contrib.django_tasks.working.attempts import (
    Attempt,
    ClaimedTask,
    Delivery,
    ResultRefused,
    TaskRecordMissing,
)
from catmq_client.contrib.django_tasks.working.records import (
    Claim,
    Claimant,
    Verdict,
    WorkerLost,
    make_records,
)
from catmq_client.errors import CatmqError
from catmq_client.http.backoff import Backoff

log: logging.Logger = logging.getLogger("catmq.tasks")

R = TypeVar("R")

# The default backoff in seconds: the first pause doubles up to the longest. Each varies by a
# tenth, so that tasks that failed together do not come again together.
FIRST_PAUSE_S, MAX_PAUSE_S, JITTER = 5.0, 600.0, 0.1
# A directly sent task without a row waits for the commit of its caller: at most ROW_TRIES
# times ROW_PAUSE_S.
ROW_TRIES, ROW_PAUSE_S = 60, 1.0
# A task whose function this worker does not have is postponed by this.
MISSING_PAUSE_S = 5.0
# After an internal error a delivery is released only after this pause, because it would meet
# the same error again at once.
TROUBLE_PAUSE_S = 1.0
# A task's outcome is written again for this long while the database is unavailable.
PERSIST_S = 60.0
# Errors of MySQL that drivers report as OperationalError although the value is the cause:
# 1153 packet too large, 3140 and 3141 invalid JSON, 3157 JSON too deep.
REFUSED_VALUE = frozenset((1153, 3140, 3141, 3157))


class Execution:
    """Runs the tasks of one backend. Threads may share it.

    `on_begin` gets each attempt before its task is called, and `on_end` the row afterwards.
    While the database is unavailable, tasks are neither called nor released until
    `is_stopping()`.

    If `defer_result` is set, it gets the return value of a task instead of the value being
    written at once. Its owner has to call `write_results` and `settle` later.
    """

    def __init__(
        self,
        settings: TaskSettings,
        worker: str,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
        on_begin: Callable[[Attempt], object] = lambda attempt: None,
        on_end: Callable[[TaskRecord], object] = lambda record: None,
        is_test: bool = False,
    ) -> None:
        """`is_test`: run in the caller's transaction, so leave its connections open; Ctrl-C
        during a task ends the caller.
        """
        self._settings, self._worker = settings, worker
        self._is_stopping, self._on_end = is_stopping, on_end
        self.on_begin: Callable[[Attempt], object] = on_begin
        self.defer_result: Callable[[Attempt, Any], object] | None = None
        self._renew_connections: Callable[[], object] = (
            (lambda: None) if is_test else _renew_connections
        )
        self._reraised = (KeyboardInterrupt,) if is_test else ()
        self._records = make_records(settings)
        # By thread id: monotonic time since when the thread waits for the database.
        self._waiting_since: dict[int, float] = {}

    def waiting_s(self) -> float:
        """Return for how many seconds a thread has waited for the database, the longest wait
        of all threads.
        """
        # A copy: other threads change the dict.
        return max(
            (time.monotonic() - since for since in [*self._waiting_since.values()]),
            default=0.0,
        )

    @contextmanager
    def _timing_database(self) -> Iterator[None]:
        thread_id = threading.get_ident()
        self._waiting_since[thread_id] = time.monotonic()
        try:
            yield
        finally:
            del self._waiting_since[thread_id]

    def claim_all(self, deliveries: Sequence[Delivery]) -> list[ClaimedTask | None]:
        """Claim the tasks of several messages in one statement. Return for each delivery what
        `handle` takes.

        Only first deliveries of tasks whose modules are imported are claimed here. For the
        others, whose claim may fail or take longer, the result is None.
        """
        self._renew_connections()
        candidates = [self._first_delivery(delivery) for delivery in deliveries]
        items = [(job, claimant) for job, claimant, _ in filter(None, candidates)]
        try:
            with self._timing_database():
                claims = iter(self._records.claim_all(items) if items else ())
        except Exception as error:  # noqa: BLE001 - then `handle` claims each, and handles its error
            log.debug("%d tasks could not be claimed together: %s", len(items), error)
            claims = iter(())
        return [
            ClaimedTask(claim, candidate[2])
            if candidate and (claim := next(claims, None))
            else None
            for candidate in candidates
        ]

    def _first_delivery(self, delivery: Delivery) -> tuple[Job, Claimant, AnyTask] | None:
        """Return the arguments of a claim, and the task; None unless it is a first delivery."""
        try:
            job = self._parse(delivery)
            token = job.delivery_token(
                attempt=delivery.attempt, deliveries=delivery.deliveries
            )
            is_imported = job.path.rpartition(".")[0] in sys.modules
            if token != 1 or job.is_early() or not is_imported:
                return None
            return (
                job,
                Claimant(token, delivery.message_id, self._worker),
                find_task(job.path),
            )
        except Exception:  # noqa: BLE001 - `handle` meets the same error and handles it
            return None

    def handle(self, delivery: Delivery, claimed: ClaimedTask | None = None) -> None:
        """Run the task of a message and accept the message. The message is released if the
        worker stops before the outcome is written.
        """
        if claimed is not None:
            attempt = Attempt(claimed.claim, claimed.task, delivery)
            self._settle(delivery, claimed.claim.job, lambda: self._run(attempt))
            return
        try:
            job = self._parse(delivery)
        except WrongMessage as error:
            log.error("message %s is made a dead letter: %s", delivery.message_id, error)
            delivery.reject(error)
            return
        self._settle(delivery, job, lambda: self._handle(job, delivery))

    def end(self, attempt: Attempt, error: BaseException | None, value: Any = None) -> bool:
        """Write the outcome of an attempt whose `end()` was True. Return True if its message
        is settled then.
        """
        if error is None:
            try:
                has_claim = self._persist(
                    lambda: self._records.succeed(attempt.claim, value)
                )
                if has_claim is None:
                    return False
                self._after_success(attempt, has_claim=has_claim)
                return True
            except DatabaseError as refused:
                error = ResultRefused(
                    f"the result of task {attempt.claim.job.path} cannot be kept: {refused}"
                )
        claim, failure = attempt.claim, error
        pause_s = self._pause_s(attempt, failure)
        if pause_s is None:
            has_claim = self._persist(lambda: self._records.fail(claim, failure))
            if has_claim:
                return self._after_failure(claim, attempt.task, attempt.delivery, failure)
        else:
            log.warning(
                "task %s %s: attempt %d failed; the next one in %.1f s",
                claim.job.id,
                claim.job.path,
                len(claim.record.worker_ids),
                pause_s,
                exc_info=failure,
            )
            delay_s = pause_s
            has_claim = self._persist(
                lambda: self._records.retry(claim, failure, delay_s=delay_s)
            )
            if has_claim:
                self._on_end(claim.record)
        if has_claim is None:
            return False
        attempt.delivery.accept()
        return True

    def write_results(
        self, returned: Sequence[tuple[Attempt, Any]]
    ) -> Sequence[bool | None]:
        """Write the return values of several tasks in one statement. Return for each what
        `settle` takes as `is_written`.
        """
        self._renew_connections()
        try:
            with self._timing_database():
                return self._records.succeed_all(
                    [(attempt.claim, value) for attempt, value in returned]
                )
        except Exception as error:  # noqa: BLE001 - then `settle` writes each, and handles its error
            log.debug(
                "the ends of %d tasks could not be written together: %s",
                len(returned),
                error,
            )
            return [None] * len(returned)

    def settle(self, attempt: Attempt, value: Any, is_written: bool | None) -> None:
        """Send the signals for a task that returned, and accept its message.

        `is_written`: False if another delivery had the task by then; None if the outcome is
        still to be written.
        """

        def work() -> bool:
            if is_written is None:
                return self.end(attempt, None, value)
            self._after_success(attempt, has_claim=is_written)
            return True

        self._settle(attempt.delivery, attempt.claim.job, work)

    def _parse(self, delivery: Delivery) -> Job:
        """Return the job of a message. Raises WrongMessage, also for a queue that the backend
        does not have.
        """
        job = parse(delivery.body)
        # The job may have to be sent again, to the topic of its queue. If that topic does
        # not exist, every delivery would fail, and max_deliveries of the group is 0: without
        # this check the message would be delivered again and again.
        if self._settings.queues and job.queue not in self._settings.queues:
            raise WrongMessage(
                f"task {job.id} is of queue {job.queue[:100]}; the QUEUES of "
                f"TASKS[{self._settings.alias!r}] "
                f"are {', '.join(self._settings.queues)}"
            )
        return job

    def _settle(self, delivery: Delivery, job: Job, work: Callable[[], bool]) -> None:
        """Call `work`, and release the message unless it returns True."""
        self._renew_connections()
        is_settled = False
        try:
            is_settled = work()
        except CatmqError as error:
            log.error("task %s is delivered again: %s", job.id, error)
            time.sleep(TROUBLE_PAUSE_S)
        except Exception:
            log.exception("internal error: task %s is delivered again", job.id)
            time.sleep(TROUBLE_PAUSE_S)
        finally:
            if not is_settled:
                delivery.release()
            self._renew_connections()

    def _handle(self, job: Job, delivery: Delivery) -> bool:
        """Claim and run a task. Return True if its message is settled."""
        if job.is_early():
            send_job(job, self._settings, due_ms=job.run_after_ms)
            return delivery.accept() or True
        token = job.delivery_token(attempt=delivery.attempt, deliveries=delivery.deliveries)
        import_error: BaseException | None = None
        task: AnyTask | None = None
        try:
            task = find_task(job.path)
        except Exception as error:  # noqa: BLE001 - importing a module may raise anything
            # During a rolling upgrade another worker may have the task already.
            if job.waits * MISSING_PAUSE_S < self._settings.missing_task_s:
                log.warning("task %s waits for a worker that has it: %s", job.id, error)
                return self._postpone(job, token, delivery, MISSING_PAUSE_S)
            import_error = error
        claimant = Claimant(token, delivery.message_id, self._worker)
        claim = self._persist(
            lambda: self._records.claim(job, claimant), until_stopped=True
        )
        return claim is not None and self._act_on_claim(claim, task, import_error, delivery)

    def _act_on_claim(
        self,
        claim: Claim,
        task: AnyTask | None,
        import_error: BaseException | None,
        delivery: Delivery,
    ) -> bool:
        job = claim.job
        if claim.verdict is Verdict.MISSING:
            # A directly sent message may arrive before the caller's transaction commits.
            if job.is_direct and job.waits < ROW_TRIES:
                return self._postpone(job, claim.token, delivery, ROW_PAUSE_S)
            missing = TaskRecordMissing(
                f"task {job.id} {job.path} has no row: it was rolled back, or deleted"
            )
            log.error("%s; its message is made a dead letter", missing)
            delivery.reject(missing)
            return True
        if claim.verdict is Verdict.RUN and task is not None:
            return self._run(Attempt(claim, task, delivery))
        if claim.verdict is Verdict.RUN:
            error = import_error or TaskMissing(job.path)
            if self._persist(lambda: self._records.fail(claim, error)) is None:
                return False
            return self._after_failure(claim, None, delivery, error)
        if claim.verdict is Verdict.USED_UP:
            return self._after_failure(
                claim, task, delivery, WorkerLost("its workers were lost")
            )
        # OVER: nothing is left to do for this message.
        delivery.accept()
        return True

    def _postpone(self, job: Job, token: int, delivery: Delivery, pause_s: float) -> bool:
        result = self._persist(lambda: self._records.postpone(job, token, delay_s=pause_s))
        if result is not None:
            delivery.accept()
        return result is not None

    def _run(self, attempt: Attempt) -> bool:
        """Call the task and write its outcome. Return True if the message needs no release."""
        self.on_begin(attempt)
        _send_signal(task_started, self._settings, attempt.result)
        error, value = None, None
        try:
            task, result = attempt.task, attempt.result
            context = (TaskContext(task_result=result),) if task.takes_context else ()
            value = to_storable_json(
                task.call(*context, *result.args, **result.kwargs),
                f"the result of task {task.module_path}",
            )
            size = len(repr(value))
            if size > MAX_BYTES:
                raise ResultRefused(
                    f"task {task.module_path} returned about {size} bytes: at most "
                    f"{MAX_BYTES} are kept"
                )
        except self._reraised:
            raise
        except BaseException as raised:  # noqa: BLE001 - SystemExit in a task fails the task, not the worker
            error = raised
        # False if the watchdog has written a timeout as the outcome.
        if attempt.end():
            if error is None and self.defer_result is not None:
                self.defer_result(attempt, value)
                return True
            return self.end(attempt, error, value)
        log.warning(
            "task %s returned after its time limit: its result is dropped",
            attempt.claim.job.id,
        )
        return True

    def _after_success(self, attempt: Attempt, *, has_claim: bool) -> None:
        if has_claim:
            self._report_end(attempt.claim, attempt.task)
        else:
            log.warning(
                "task %s returned, but another worker has claimed it: its result is dropped",
                attempt.claim.job.id,
            )
        attempt.delivery.accept()

    def _after_failure(
        self, claim: Claim, task: AnyTask | None, delivery: Delivery, error: BaseException
    ) -> bool:
        """Report a task whose row is written as failed for good, and settle its message."""
        log.error("task %s %s: failed", claim.job.id, claim.job.path, exc_info=error)
        self._report_end(claim, task)
        if self._settings.dead:
            delivery.reject(error)
        else:
            delivery.accept()
        return True

    def _pause_s(self, attempt: Attempt, error: BaseException) -> float | None:
        """Return the seconds until the next attempt; None if there is none."""
        attempts = len(attempt.claim.record.worker_ids)
        if attempts >= attempt.claim.job.max_attempts or isinstance(error, ResultRefused):
            return None
        backoff = getattr(attempt.task, "backoff", None)
        if backoff is not None:
            try:
                task_pause_s = backoff(error, attempt.result)
                return (
                    None
                    if task_pause_s is None
                    else min(max(0.0, float(task_pause_s)), 365 * 86_400.0)
                )
            except Exception:
                log.exception(
                    "backoff of task %s failed: the usual pause is taken",
                    attempt.claim.job.path,
                )
        pause_s = min(FIRST_PAUSE_S * 2.0 ** (attempts - 1), MAX_PAUSE_S)
        return pause_s * random.uniform(1 - JITTER, 1 + JITTER)

    def _report_end(self, claim: Claim, task: AnyTask | None) -> None:
        self._on_end(claim.record)
        if task is not None:
            _send_signal(task_finished, self._settings, claim.record.result(task))

    def _persist(self, work: Callable[[], R], *, until_stopped: bool = False) -> R | None:
        """Call `work`, which is one change in the database, and repeat it while the database
        is unavailable. Return its result.

        Returns None if the worker stops, or after PERSIST_S unless `until_stopped`. Then the
        message is delivered again when its lease ends.
        """
        backoff, deadline = Backoff(), time.monotonic() + PERSIST_S
        while True:
            try:
                with self._timing_database():
                    return work()
            except (OperationalError, InterfaceError) as error:
                if error.args and error.args[0] in REFUSED_VALUE:
                    raise
                if self._is_stopping() or (
                    not until_stopped and time.monotonic() > deadline
                ):
                    log.error(
                        "a task is left to the end of its lease, the database is away: %s",
                        error,
                    )
                    return None
                log.warning(
                    "the application's database cannot be used, will retry: %s", error
                )
                time.sleep(backoff.next_s())
                self._renew_connections()


def _send_signal(signal: Any, settings: TaskSettings, result: AnyResult) -> None:
    """Send a signal. An error in a receiver is logged and does not affect the task."""
    for receiver, error in signal.send_robust(
        sender=type(task_backends[settings.alias]), task_result=result
    ):
        if isinstance(error, Exception):
            log.error("receiver %r failed for task %s", receiver, result.id, exc_info=error)


def _renew_connections() -> None:
    """Do for a thread's connections what Django does between requests."""
    close_old_connections()
    if django_settings.DEBUG:
        reset_queries()
