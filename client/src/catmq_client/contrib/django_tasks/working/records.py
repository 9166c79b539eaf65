"""The rows of tasks as a worker changes them.

A task may be delivered several times: its message is redelivered if a worker is lost, and
each retry sends another message. A fencing token ensures that only the latest delivery which
has claimed the task changes its row:

* Tokens rise from delivery to delivery. The first delivery of the first message has token 1,
  a redelivery has the next number (Job.delivery_token), and the tokens of the next message
  begin above all tokens of the message before (Job.next_job).
* A row begins with token 0. A *claim* writes the token of its delivery into the row, and
  only if that raises the row's token.
* All later changes of the attempt have `token = that of the claim` in their WHERE clause. So
  they change nothing once a later delivery has claimed the task.

With RESULTS "none" there are no rows. Then the message carries the number of attempts, which
is less exact, and nothing fences a worker that has lost its lease.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from traceback import format_exception
from typing import Any, NamedTuple

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.contrib.django_tasks.jobs import Job, database_alias, now_ms, send_job
from catmq_client.contrib.django_tasks.models import TaskRecord
from catmq_client.contrib.django_tasks.working.batching import Guard, update_rows
from catmq_client.errors import CatmqError

log: logging.Logger = logging.getLogger("catmq.tasks")

Status = TaskRecord.Status
# Limits of the errors that a row keeps: their number, and characters of each.
MAX_ERRORS = 20
MAX_TRACEBACK = 64 * 1024
# Without rows, each delivery of a message counts as an attempt, except this many. In its first
# two deliveries a message is leased together with others, so it may have been waiting when
# its worker was lost. From the third delivery on it is leased alone (SUSPECT_FROM in
# sharing/runs.py), and the lease counts only when the task is called.
LEASES_NOT_COUNTED = 2


class WorkerLost(CatmqError, code="worker_lost"):
    """The worker of an attempt ended, or lost its lease, before the task returned."""


class Verdict(Enum):
    """The result of a claim: what to do with the delivery."""

    RUN = "run"
    # The task has ended or was discarded, or a later delivery has claimed it. The message is
    # accepted.
    OVER = "over"
    # There is no row: it is not committed yet, or was deleted.
    MISSING = "missing"
    # All attempts were used, the last by a worker that was lost. The claim has set the row to
    # FAILED.
    USED_UP = "used up"


class Claim(NamedTuple):
    """The result of a claim. `token` is that of the delivery.

    `record` is the task's row. After verdict RUN its `worker_ids`, one for each attempt,
    include this attempt.
    """

    verdict: Verdict
    job: Job
    token: int
    record: TaskRecord


class Claimant(NamedTuple):
    """A delivery that claims a task: its token, its message, and its worker."""

    token: int
    message_id: str
    worker: str


def make_records(task_settings: TaskSettings) -> DatabaseRecords | NoRecords:
    """Return the storage that RESULTS selects. Both classes have the same methods."""
    storage = DatabaseRecords if task_settings.results == "database" else NoRecords
    return storage(task_settings)


class DatabaseRecords:
    """Storage in rows of catmq_task.

    Each change after the claim returns False if a later delivery has claimed the task.
    """

    def __init__(self, task_settings: TaskSettings) -> None:
        self._settings = task_settings

    @property
    def _rows(self) -> QuerySet[TaskRecord]:
        return TaskRecord.objects.using(database_alias(self._settings))

    def claim(self, job: Job, claimant: Claimant) -> Claim:
        """Claim a task. From then on, earlier deliveries cannot change its row."""
        # Token 1: most likely the row is as it was enqueued, and needs no SELECT.
        claims = self.claim_all([(job, claimant)]) if claimant.token == 1 else []
        return claims[0] if claims else self._claim_by_row(job, claimant)

    def claim_all(self, items: Sequence[tuple[Job, Claimant]]) -> list[Claim]:
        """Claim tasks in the first deliveries (token 1) of their first messages, all for the
        same worker.

        This is a single UPDATE without a SELECT. It expects that each row is as it was
        enqueued: READY, with token 0.

        Return [] if any row is not in that state. The other rows are claimed all the same, and
        this method cannot know which. So the caller then calls `claim` for each task, which
        recognises a claim of its own delivery.
        """
        # The claimants differ in nothing but their message ids.
        running = _running_values(items[0][1], None, [])
        common = {name: value for name, value in running.items() if name != "message_id"}
        message_ids = [claimant.message_id[:64] for _, claimant in items]
        claimed = update_rows(
            database_alias(self._settings),
            [Guard(job.id, token=0) for job, _ in items],
            status=Status.READY,
            common=common,
            per_row={"message_id": message_ids},
        )
        if claimed < len(items):
            return []
        return [
            Claim(
                Verdict.RUN,
                job,
                claimant.token,
                build_record(job, **common, message_id=message_id),
            )
            for (job, claimant), message_id in zip(items, message_ids, strict=True)
        ]

    def _claim_by_row(self, job: Job, claimant: Claimant) -> Claim:
        """Read the row and claim it if this delivery is the latest one."""
        # Optimistic locking: the UPDATE expects the status and token that were read, and is
        # repeated from the start if another delivery has changed the row in between.
        while True:
            record = self._rows.filter(pk=job.id).first()
            if record is None:
                return Claim(Verdict.MISSING, job, claimant.token, build_record(job))
            # An operator may have raised the limit in the row after the message was sent. The
            # job of the claim gets that limit, because it decides whether a failure is
            # retried.
            max_attempts = record.max_attempts or job.max_attempts
            if (record.status, record.token, record.worker_ids[-1:]) == (
                Status.RUNNING,
                claimant.token,
                [claimant.worker],
            ):
                # This delivery has claimed the row already: in a `claim_all` that returned
                # [], or in a call whose response was lost.
                return Claim(
                    Verdict.RUN,
                    replace(job, max_attempts=max_attempts),
                    claimant.token,
                    record,
                )
            if record.is_over or record.token >= claimant.token:
                return Claim(Verdict.OVER, job, claimant.token, record)
            # The row is free, or belongs to an earlier delivery: claim it, or end it if each
            # of its attempts was begun.
            is_used_up = len(record.worker_ids) >= max_attempts
            changes = (
                _ended_values(Status.FAILED) | {"token": claimant.token}
                if is_used_up
                else _running_values(claimant, record.started_at, record.worker_ids)
            )
            if record.status == Status.RUNNING:
                # An earlier delivery had claimed the task, and its lease has ended.
                changes["errors"] = append_error(
                    record.errors,
                    WorkerLost(f"worker {record.worker_ids[-1]} ended, or lost its lease"),
                )
            if self._rows.filter(
                pk=job.id, status=record.status, token=record.token
            ).update(**changes):
                verdict = Verdict.USED_UP if is_used_up else Verdict.RUN
                job = replace(job, max_attempts=max_attempts)
                return Claim(verdict, job, claimant.token, set_values(record, changes))

    def succeed(self, claim: Claim, value: Any) -> bool:
        return self.succeed_all([(claim, value)])[0]

    def succeed_all(self, items: Sequence[tuple[Claim, Any]]) -> list[bool]:
        """Write the return values of tasks in one statement. Return for each claim True if
        its value was written.
        """
        changes = _ended_values(Status.SUCCESSFUL)
        guards = [Guard(claim.job.id, claim.token) for claim, _ in items]
        number = update_rows(
            database_alias(self._settings),
            guards,
            status=Status.RUNNING,
            common=changes,
            per_row={"return_value": [value for _, value in items]},
        )
        written = set(guards)
        if number < len(items):
            # Some were lost to later deliveries, or this call repeats a statement whose
            # response was lost. No other delivery has this token, so a row that ended with it
            # was written by this worker.
            ended = self._rows.filter(
                pk__in=[guard.id for guard in guards], status=Status.SUCCESSFUL
            )
            written &= {Guard(*row) for row in ended.values_list("pk", "token")}
        for guard, (claim, value) in zip(guards, items, strict=True):
            if guard in written:
                set_values(claim.record, changes | {"return_value": value})
        return [guard in written for guard in guards]

    def fail(self, claim: Claim, error: BaseException) -> bool:
        errors = append_error(claim.record.errors, error)
        return self._end(claim, _ended_values(Status.FAILED) | {"errors": errors})

    def retry(self, claim: Claim, error: BaseException, *, delay_s: float) -> bool:
        """Schedule the next attempt in `delay_s` seconds: send its message, and set the row to
        READY.
        """
        due_ms = now_ms() + round(delay_s * 1000)
        next_job = claim.job.next_job(above=claim.token)
        changes = {
            "status": Status.READY,
            "errors": append_error(claim.record.errors, error),
            "run_after": timezone.now() + timedelta(seconds=delay_s),
            "token": next_job.token,
        }
        return self._send_next(next_job, due_ms, lambda: self._end(claim, changes))

    def postpone(self, job: Job, token: int, *, delay_s: float) -> bool:
        """Send a task again, in `delay_s` seconds, without having claimed it. This is no
        attempt.
        """
        due_ms = now_ms() + round(delay_s * 1000)
        next_job = job.next_job(above=token, waits=job.waits + 1)
        # The row if neither this delivery nor a later one has claimed it. RUNNING is then an
        # earlier delivery, whose lease has ended; raising the token fences it, too.
        unclaimed = self._rows.filter(
            pk=job.id, status__in=(Status.READY, Status.RUNNING), token__lt=token
        )

        def raise_token() -> bool:
            is_updated = unclaimed.update(token=next_job.token)
            # A row that is not committed yet has no token to raise; the message is sent all
            # the same.
            return bool(is_updated) or not self._rows.filter(pk=job.id).exists()

        return self._send_next(next_job, due_ms, raise_token)

    def _send_next(self, next_job: Job, due_ms: int, change: Callable[[], bool]) -> bool:
        """Send the task's next message and change its row. Return the result of `change`.

        Nothing is sent through the outbox if `change` returns False.
        """
        if next_job.is_direct:
            # No transaction contains both. The message is sent first: if the change fails,
            # the task may be delivered twice, but it is never lost.
            send_job(next_job, self._settings, due_ms=due_ms)
            return bool(change())
        with transaction.atomic(using=database_alias(self._settings)):
            if not change():
                return False
            send_job(next_job, self._settings, due_ms=due_ms)
        return True

    def _end(self, claim: Claim, changes: dict[str, Any]) -> bool:
        """Write the outcome of an attempt. Return False if a later delivery has claimed the
        task.
        """
        if not self._rows.filter(
            pk=claim.job.id, status=Status.RUNNING, token=claim.token
        ).update(**changes):
            return False
        set_values(claim.record, changes)
        return True


class NoRecords:
    """Storage without rows. Messages count the attempts, and no change is ever refused."""

    def __init__(self, task_settings: TaskSettings) -> None:
        self._settings = task_settings

    def claim(self, job: Job, claimant: Claimant) -> Claim:
        deliveries = claimant.token - job.token
        # Attempts of earlier messages, plus earlier deliveries of this message.
        earlier_attempts = job.attempts + max(0, deliveries - 1 - LEASES_NOT_COUNTED)
        # The number of worker ids is the number of attempts. No message has the ids.
        record = build_record(job, worker_ids=["?"] * earlier_attempts)
        if earlier_attempts >= job.max_attempts:
            error = WorkerLost(
                f"its workers ended, or lost their leases, {earlier_attempts} times"
            )
            changes = _ended_values(Status.FAILED) | {"errors": append_error([], error)}
            return Claim(Verdict.USED_UP, job, claimant.token, set_values(record, changes))
        changes = _running_values(claimant, None, record.worker_ids)
        return Claim(Verdict.RUN, job, claimant.token, set_values(record, changes))

    def claim_all(self, items: Sequence[tuple[Job, Claimant]]) -> list[Claim]:
        return [self.claim(job, claimant) for job, claimant in items]

    def succeed(self, claim: Claim, value: Any) -> bool:
        return self.succeed_all([(claim, value)])[0]

    def succeed_all(self, items: Sequence[tuple[Claim, Any]]) -> list[bool]:
        for claim, value in items:
            set_values(
                claim.record, _ended_values(Status.SUCCESSFUL) | {"return_value": value}
            )
        return [True] * len(items)

    def fail(self, claim: Claim, error: BaseException) -> bool:
        set_values(
            claim.record,
            _ended_values(Status.FAILED) | {"errors": append_error([], error)},
        )
        return True

    def retry(self, claim: Claim, error: BaseException, *, delay_s: float) -> bool:
        job = claim.job.next_job(above=claim.token, attempts=len(claim.record.worker_ids))
        send_job(job, self._settings, due_ms=now_ms() + round(delay_s * 1000))
        set_values(
            claim.record, {"status": Status.READY, "errors": append_error([], error)}
        )
        return True

    def postpone(self, job: Job, token: int, *, delay_s: float) -> bool:
        next_job = job.next_job(above=token, waits=job.waits + 1)
        send_job(next_job, self._settings, due_ms=now_ms() + round(delay_s * 1000))
        return True


def build_record(job: Job, **changes: Any) -> TaskRecord:
    """Return an unsaved row with the values that the message has, and with `changes`."""
    enqueued_at = datetime.fromtimestamp(job.enqueued_at_ms / 1000, UTC)
    record = TaskRecord(
        id=job.id,
        path=job.path,
        queue_name=job.queue,
        priority=job.priority,
        backend_name=job.backend,
        args=job.args,
        kwargs=job.kwargs,
        enqueued_at=enqueued_at if settings.USE_TZ else timezone.make_naive(enqueued_at),
    )
    return set_values(record, changes)


def set_values(record: TaskRecord, changes: Mapping[str, Any]) -> TaskRecord:
    for name, value in changes.items():
        setattr(record, name, value)
    return record


def append_error(
    errors: list[dict[str, str]], error: BaseException
) -> list[dict[str, str]]:
    """Return the errors with `error` appended. Beyond MAX_ERRORS the oldest are dropped."""
    text = getattr(error, "stack_text", None) or "".join(format_exception(error))
    if len(text) > MAX_TRACEBACK:
        # The middle is dropped: the beginning has the caller, the end has the error.
        half = MAX_TRACEBACK // 2
        text = f"{text[:half]}\n[…]\n{text[-half:]}"
    entry = {
        "exception_class_path": f"{type(error).__module__}.{type(error).__qualname__}",
        "traceback": text.encode(errors="replace").decode().replace("\0", "?"),
    }
    return [*errors, entry][-MAX_ERRORS:]


def _running_values(
    claimant: Claimant, started_at: Any, earlier_workers: list[str]
) -> dict[str, Any]:
    """Return the values of a row whose next attempt begins now.

    `started_at` is the time of the first attempt, None if this is the first.
    """
    now = timezone.now()
    return {
        "status": Status.RUNNING,
        "token": claimant.token,
        "started_at": started_at or now,
        "last_attempted_at": now,
        "worker_ids": [*earlier_workers, claimant.worker],
        "message_id": claimant.message_id[:64],
    }


def _ended_values(status: str) -> dict[str, Any]:
    return {"status": status, "finished_at": timezone.now()}
