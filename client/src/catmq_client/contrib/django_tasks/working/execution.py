"""One delivery of a task: it is claimed, called, and its end is written before its message
is accepted.
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
    MOST_BYTES,
    Job,
    WrongMessage,
    json_of,
    parse,
    send,
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
    Begun,
    Delivery,
    ResultRefused,
    TaskRecordMissing,
)
from catmq_client.contrib.django_tasks.working.records import (
    Claim,
    Place,
    Verdict,
    WorkerLost,
    records_of,
)
from catmq_client.errors import CatmqError
from catmq_client.http.backoff import Backoff

log = logging.getLogger("catmq.tasks")

R = TypeVar("R")

# The pause before the second attempt, and the longest; each doubles, and varies by a tenth,
# s.
FIRST_PAUSE_S, MOST_PAUSE_S, VARIES = 5.0, 600.0, 0.1
# A task without a row waits for the commit of its caller: so often, for so long.
ROW_TRIES, ROW_PAUSE_S = 60, 1.0
# A task without a function waits for a worker that has it.
MISSING_PAUSE_S = 5.0
# A task that met an error of ours would meet it again at once: its thread waits before it
# gives it back.
TROUBLE_PAUSE_S = 1.0
# The end of a task is written again for so long while the database is away.
PERSIST_S = 60.0
# Errors of MySQL about a value that drivers count as the server's trouble: no JSON, too
# deep, too large.
REFUSED = frozenset((1153, 3140, 3141, 3157))


class Execution:
    """Runs the tasks of one backend; safe to share between threads.

    `on_begin` gets each attempt before its task is called, and `on_end` the row afterwards.
    While the database is away, a task is neither begun nor given up until `is_stopping()`.
    `later`, if there is one, gets what a task returned instead of its end being written at
    once; it has to call
    `write_ends` and
    `settle`.
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
        """`is_test`: connections are the caller's, in a transaction, and Ctrl-C ends the
        caller.
        """
        self._settings, self._worker = settings, worker
        self._is_stopping, self.on_begin, self._on_end = is_stopping, on_begin, on_end
        self.later: Callable[[Attempt, Any], object] | None = None
        self._renew_connections: Callable[[], object] = (
            _nothing if is_test else _renew_connections
        )
        self._passes = (KeyboardInterrupt,) if is_test else ()
        self._records = records_of(settings)
        # By thread: since when the database has owed it an answer, monotonic.
        self._asked: dict[int, float] = {}

    def waiting_s(self) -> float:
        """Return for how long the database has owed the answer that a thread has waited for
        the longest.
        """
        return max(
            (time.monotonic() - since for since in [*self._asked.values()]), default=0.0
        )

    @contextmanager
    def _asking(self) -> Iterator[None]:
        me = threading.get_ident()
        self._asked[me] = time.monotonic()
        try:
            yield
        finally:
            del self._asked[me]

    def begin_all(self, deliveries: Sequence[Delivery]) -> list[Begun | None]:
        """Claim the tasks of messages that came together by one statement; return what
        `handle` takes.

        Only such as come for the first time, and whose module is imported: what may fail or
        take long is left to `handle`.
        """
        self._renew_connections()
        firsts = [self._first_of(delivery) for delivery in deliveries]
        items = [(job, place) for job, place, _ in filter(None, firsts)]
        try:
            with self._asking():
                claims = iter(self._records.claim_all(items) if items else ())
        except Exception as error:  # noqa: BLE001 - each is claimed alone then, and has its own error
            log.debug("%d tasks could not be claimed together: %s", len(items), error)
            claims = iter(())
        return [
            Begun(claim, one[2]) if one and (claim := next(claims, None)) else None
            for one in firsts
        ]

    def _first_of(self, delivery: Delivery) -> tuple[Job, Place, AnyTask] | None:
        """Return what claims a task in its first delivery; None where there is more to it."""
        try:
            job = self._parse(delivery)
            token = job.token_of(attempt=delivery.attempt, deliveries=delivery.deliveries)
            if (
                token != 1
                or job.is_early()
                or job.path.rpartition(".")[0] not in sys.modules
            ):
                return None
            return job, Place(token, delivery.message_id, self._worker), find_task(job.path)
        except Exception:  # noqa: BLE001 - `handle` meets it, too
            return None

    def handle(self, delivery: Delivery, begun: Begun | None = None) -> None:
        """Do with a message what is to be done, and accept it; leave it if the worker ends
        before that.
        """
        if begun is not None:
            attempt = Attempt(begun.claim, begun.task, delivery)
            self._settle(delivery, begun.claim.job, lambda: self._run(attempt))
            return
        try:
            job = self._parse(delivery)
        except WrongMessage as error:
            log.error("message %s is made a dead letter: %s", delivery.message_id, error)
            delivery.reject(error)
            return
        self._settle(delivery, job, lambda: self._handle(job, delivery))

    def end(self, attempt: Attempt, error: BaseException | None, value: Any = None) -> bool:
        """Write the end of an attempt whose `end()` was True; return True if its message is
        settled then.
        """
        if error is None:
            try:
                return self._succeeded(attempt, value)
            except DatabaseError as refused:
                error = ResultRefused(
                    f"the result of task {attempt.claim.job.path} cannot be kept: {refused}"
                )
        return self._failed(attempt, error)

    def write_ends(self, returned: Sequence[tuple[Attempt, Any]]) -> Sequence[bool | None]:
        """Write the ends of tasks that returned by one statement; return for each what
        `settle` takes.
        """
        self._renew_connections()
        try:
            with self._asking():
                return self._records.succeed_all(
                    [(attempt.claim, value) for attempt, value in returned]
                )
        except Exception as error:  # noqa: BLE001 - each is written alone then, and has its own error
            log.debug(
                "the ends of %d tasks could not be written together: %s",
                len(returned),
                error,
            )
            return [None] * len(returned)

    def settle(self, attempt: Attempt, value: Any, is_written: bool | None) -> None:
        """Do what follows the end of a task that returned.

        `is_written`: False if the task was somebody else's by then; None if the end is
        still to be written.
        """

        def work() -> bool:
            if is_written is None:
                return self.end(attempt, None, value)
            self._has_succeeded(attempt, is_mine=is_written)
            return True

        self._settle(attempt.delivery, attempt.claim.job, work)

    def _parse(self, delivery: Delivery) -> Job:
        """Return the job of a message. Raises WrongMessage, also for a queue that the
        backend does not have.

        The job may have to be sent on to the topic of its queue. If there is none, that
        would fail each time the message is delivered, and no bound on deliveries ends it.
        """
        job = parse(delivery.body)
        if self._settings.queues and job.queue not in self._settings.queues:
            queues = ", ".join(self._settings.queues)
            raise WrongMessage(
                f"task {job.id} is of queue {job.queue[:100]}; the QUEUES of "
                f"TASKS[{self._settings.alias!r}] "
                f"are {queues}"
            )
        return job

    def _settle(self, delivery: Delivery, job: Job, work: Callable[[], bool]) -> None:
        """Let the message be delivered again unless `work` returns True."""
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
        """Return True if nothing more is to be said of the message."""
        if job.is_early():
            send(job, self._settings, due_ms=job.run_after_ms)
            return delivery.accept() or True
        token = job.token_of(attempt=delivery.attempt, deliveries=delivery.deliveries)
        missing: BaseException | None = None
        task: AnyTask | None = None
        try:
            task = find_task(job.path)
        except Exception as error:  # noqa: BLE001 - a module that cannot be imported may raise anything
            if job.waits * MISSING_PAUSE_S < self._settings.missing_task_s:
                log.warning("task %s waits for a worker that has it: %s", job.id, error)
                return self._put_off(job, token, delivery, MISSING_PAUSE_S)
            missing = error
        place = Place(token, delivery.message_id, self._worker)
        claim = self._persist(lambda: self._records.claim(job, place), for_ever=True)
        return claim is not None and self._claimed(claim, task, missing, delivery)

    def _claimed(
        self,
        claim: Claim,
        task: AnyTask | None,
        missing: BaseException | None,
        delivery: Delivery,
    ) -> bool:
        job = claim.job
        if claim.verdict is Verdict.MISSING:
            return self._wait_for_row(claim, delivery)
        if claim.verdict is Verdict.RUN and task is not None:
            return self._run(Attempt(claim, task, delivery))
        if claim.verdict is Verdict.RUN:
            error = missing or TaskMissing(job.path)
            if self._persist(lambda: self._records.fail(claim, error)) is None:
                return False
            return self._has_failed(claim, None, delivery, error)
        if claim.verdict is Verdict.USED_UP:
            return self._has_failed(
                claim, task, delivery, WorkerLost("its workers were lost")
            )
        delivery.accept()
        return True

    def _wait_for_row(self, claim: Claim, delivery: Delivery) -> bool:
        job = claim.job
        if job.is_direct and job.waits < ROW_TRIES:
            return self._put_off(job, claim.token, delivery, ROW_PAUSE_S)
        error = TaskRecordMissing(
            f"task {job.id} {job.path} has no row: it was rolled back, or deleted"
        )
        log.error("%s; its message is made a dead letter", error)
        delivery.reject(error)
        return True

    def _put_off(self, job: Job, token: int, delivery: Delivery, pause_s: float) -> bool:
        if (
            self._persist(lambda: self._records.put_off(job, token, delay_s=pause_s))
            is None
        ):
            return False
        delivery.accept()
        return True

    def _run(self, attempt: Attempt) -> bool:
        self.on_begin(attempt)
        _tell(task_started, self._settings, attempt.result)
        error, value = None, None
        try:
            value = _call(attempt)
        except self._passes:
            raise
        except BaseException as raised:  # noqa: BLE001 - SystemExit in a task fails the task, not the worker
            error = raised
        if attempt.end():
            if error is None and self.later is not None:
                self.later(attempt, value)
                return True
            return self.end(attempt, error, value)
        log.warning(
            "task %s returned after its time limit: its result is dropped",
            attempt.claim.job.id,
        )
        return True

    def _succeeded(self, attempt: Attempt, value: Any) -> bool:
        claim = attempt.claim
        is_mine = self._persist(lambda: self._records.succeed(claim, value))
        if is_mine is None:
            return False
        self._has_succeeded(attempt, is_mine=is_mine)
        return True

    def _has_succeeded(self, attempt: Attempt, *, is_mine: bool) -> None:
        if is_mine:
            self._finished(attempt.claim, attempt.task)
        else:
            what = "task %s was done, but is somebody else's by now: its result is dropped"
            log.warning(what, attempt.claim.job.id)
        attempt.delivery.accept()

    def _failed(self, attempt: Attempt, error: BaseException) -> bool:
        claim, job = attempt.claim, attempt.claim.job
        pause_s = self._pause_s(attempt, error)
        if pause_s is None:
            mine = self._persist(lambda: self._records.fail(claim, error))
            if mine:
                return self._has_failed(claim, attempt.task, attempt.delivery, error)
        else:
            what = "task %s %s: attempt %d failed; the next one in %.1f s"
            log.warning(
                what,
                job.id,
                job.path,
                len(claim.record.worker_ids),
                pause_s,
                exc_info=error,
            )
            later_s = pause_s
            mine = self._persist(lambda: self._records.retry(claim, error, delay_s=later_s))
            if mine:
                self._on_end(claim.record)
        if mine is None:
            return False
        attempt.delivery.accept()
        return True

    def _has_failed(
        self, claim: Claim, task: AnyTask | None, delivery: Delivery, error: BaseException
    ) -> bool:
        """A task has failed for good, and that is written."""
        log.error("task %s %s: failed", claim.job.id, claim.job.path, exc_info=error)
        self._finished(claim, task)
        if self._settings.dead:
            delivery.reject(error)
        else:
            delivery.accept()
        return True

    def _pause_s(self, attempt: Attempt, error: BaseException) -> float | None:
        """Return the pause before the next attempt; None if there is none."""
        begun = len(attempt.claim.record.worker_ids)
        if begun >= attempt.claim.job.max_attempts or isinstance(error, ResultRefused):
            return None
        backoff = getattr(attempt.task, "backoff", None)
        if backoff is not None:
            try:
                asked = backoff(error, attempt.result)
                return (
                    None if asked is None else min(max(0.0, float(asked)), 365 * 86_400.0)
                )
            except Exception:
                log.exception(
                    "backoff of task %s failed: the usual pause is taken",
                    attempt.claim.job.path,
                )
        pause_s = min(FIRST_PAUSE_S * 2.0 ** (begun - 1), MOST_PAUSE_S)
        return pause_s * random.uniform(1 - VARIES, 1 + VARIES)

    def _finished(self, claim: Claim, task: AnyTask | None) -> None:
        self._on_end(claim.record)
        if task is not None:
            _tell(task_finished, self._settings, claim.record.result(task))

    def _persist(self, work: Callable[[], R], *, for_ever: bool = False) -> R | None:
        """Return what `work` returns, which is one change of the database; repeated while
        that is away.

        None: it stayed away, or the worker ends; the lease then brings the message back.
        """
        backoff, give_up_at = Backoff(), time.monotonic() + PERSIST_S
        while True:
            try:
                with self._asking():
                    return work()
            except (OperationalError, InterfaceError) as error:
                if error.args and error.args[0] in REFUSED:
                    raise
                if self._is_stopping() or (not for_ever and time.monotonic() > give_up_at):
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


def _call(attempt: Attempt) -> Any:
    """Return what the task returns, as JSON has it. Raises ResultRefused, and what the task
    raises.
    """
    task, result = attempt.task, attempt.result
    first = (TaskContext(task_result=result),) if task.takes_context else ()
    value = json_of(
        task.call(*first, *result.args, **result.kwargs),
        f"the result of task {task.module_path}",
    )
    size = len(repr(value))
    if size > MOST_BYTES:
        raise ResultRefused(
            f"task {task.module_path} returned about {size} bytes: at most {MOST_BYTES} are kept"
        )
    return value


def _tell(signal: Any, settings: TaskSettings, result: AnyResult) -> None:
    """Send a signal; a receiver that fails changes nothing for the task."""
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


def _nothing() -> None:
    """Leave connections as they are."""
