"""The rows of tasks as a worker changes them: each change is guarded by the token of its
delivery.

Without rows (RESULTS "none") the same is done by what the message says, as far as that
goes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from traceback import format_exception
from typing import Any, NamedTuple, Protocol

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.contrib.django_tasks.jobs import Job, alias_of, now_ms, send
from catmq_client.contrib.django_tasks.models import TaskRecord
from catmq_client.contrib.django_tasks.working.batching import Guard, change_rows
from catmq_client.errors import CatmqError

log = logging.getLogger("catmq.tasks")

Status = TaskRecord.Status
# What is kept of the errors of a task.
MOST_ERRORS = 20
MOST_TRACEBACK = 64 * 1024
# Without rows: leases of a message that may have ended before it was begun.
LEASES_NOT_COUNTED = 2


class WorkerLost(CatmqError, code="worker_lost"):
    """The worker of an attempt ended, or lost its lease, before the task did."""


class Verdict(Enum):
    """The next step with a delivery."""

    RUN = "run"
    # It ended, was discarded, or somebody else has it.
    OVER = "over"
    # There is no row: it is not committed yet, or was deleted.
    MISSING = "missing"
    # Its workers were lost as often as it may be begun: it has failed now.
    USED_UP = "used up"


class Claim(NamedTuple):
    """A delivery of a task; `record` is its row, with this attempt in `worker_ids`."""

    verdict: Verdict
    job: Job
    token: int
    record: TaskRecord


class Place(NamedTuple):
    """A delivery: its token, its message, and the worker that has it."""

    token: int
    message_id: str
    worker: str


class Records(Protocol):
    """Keeps what becomes of tasks. Each change returns False if the task is not this
    delivery's any more.
    """

    def claim(self, job: Job, place: Place) -> Claim: ...
    def claim_all(self, items: Sequence[tuple[Job, Place]]) -> list[Claim]: ...
    def succeed(self, claim: Claim, value: Any) -> bool: ...
    def succeed_all(self, items: Sequence[tuple[Claim, Any]]) -> list[bool]: ...
    def fail(self, claim: Claim, error: BaseException) -> bool: ...
    def retry(self, claim: Claim, error: BaseException, *, delay_s: float) -> bool: ...
    def put_off(self, job: Job, token: int, *, delay_s: float) -> bool: ...


def records_of(given: TaskSettings) -> Records:
    return DatabaseRecords(given) if given.results == "database" else NoRecords(given)


class DatabaseRecords:
    """Rows of catmq_task."""

    def __init__(self, given: TaskSettings) -> None:
        self._settings = given

    @property
    def _rows(self) -> QuerySet[TaskRecord]:
        return TaskRecord.objects.using(alias_of(self._settings))

    def claim(self, job: Job, place: Place) -> Claim:
        """Take a task over from all earlier deliveries."""
        first = self.claim_all([(job, place)]) if place.token == 1 else []
        return first[0] if first else self._claim_later(job, place)

    def claim_all(self, items: Sequence[tuple[Job, Place]]) -> list[Claim]:
        """Claim tasks in their first deliveries to one worker; their rows need not be read.

        Return nothing if one was somebody's: the others may be claimed now, and `claim`
        tells of each.
        """
        begun = _begun(items[0][1], None, [])
        same = {name: value for name, value in begun.items() if name != "message_id"}
        message_ids = [place.message_id[:64] for _, place in items]
        number = change_rows(
            alias_of(self._settings),
            [Guard(job.id, 0) for job, _ in items],
            before=Status.READY,
            same=same,
            each={"message_id": message_ids},
        )
        if number < len(items):
            return []
        return [
            Claim(
                Verdict.RUN, job, place.token, in_memory(job, **same, message_id=message_id)
            )
            for (job, place), message_id in zip(items, message_ids, strict=True)
        ]

    def _claim_later(self, job: Job, place: Place) -> Claim:
        while True:
            record = self._rows.filter(pk=job.id).first()
            if record is None:
                return Claim(Verdict.MISSING, job, place.token, in_memory(job))
            most = record.max_attempts or job.max_attempts
            if _is_claimed(record, place):
                # The answer to this claim was lost, and it is repeated.
                return Claim(
                    Verdict.RUN, replace(job, max_attempts=most), place.token, record
                )
            if record.is_over or record.token >= place.token:
                return Claim(Verdict.OVER, job, place.token, record)
            is_used_up = len(record.worker_ids) >= most
            changes = (
                _ended(Status.FAILED) | {"token": place.token}
                if is_used_up
                else _begun(place, record.started_at, record.worker_ids)
            )
            if record.status == Status.RUNNING:
                lost = WorkerLost(
                    f"worker {record.worker_ids[-1]} ended, or lost its lease"
                )
                changes["errors"] = with_error(record.errors, lost)
            if self._rows.filter(
                pk=job.id, status=record.status, token=record.token
            ).update(**changes):
                verdict = Verdict.USED_UP if is_used_up else Verdict.RUN
                job = replace(job, max_attempts=most)
                return Claim(verdict, job, place.token, changed(record, changes))

    def succeed(self, claim: Claim, value: Any) -> bool:
        return self.succeed_all([(claim, value)])[0]

    def succeed_all(self, items: Sequence[tuple[Claim, Any]]) -> list[bool]:
        changes = _ended(Status.SUCCESSFUL)
        guards = [Guard(claim.job.id, claim.token) for claim, _ in items]
        number = change_rows(
            alias_of(self._settings),
            guards,
            before=Status.RUNNING,
            same=changes,
            each={"return_value": [value for _, value in items]},
        )
        written = set(guards)
        if number < len(items):
            # A token is one delivery's: a row with it was written here, and the answer was
            # lost.
            ended = self._rows.filter(
                pk__in=[guard.id for guard in guards], status=Status.SUCCESSFUL
            )
            written &= {Guard(*found) for found in ended.values_list("pk", "token")}
        for guard, (claim, value) in zip(guards, items, strict=True):
            if guard in written:
                changed(claim.record, changes | {"return_value": value})
        return [guard in written for guard in guards]

    def fail(self, claim: Claim, error: BaseException) -> bool:
        errors = with_error(claim.record.errors, error)
        return self._end(claim, _ended(Status.FAILED) | {"errors": errors})

    def retry(self, claim: Claim, error: BaseException, *, delay_s: float) -> bool:
        """Let a task be begun again: its row and its next message are written in one
        transaction.
        """
        due_ms = now_ms() + round(delay_s * 1000)
        job = claim.job.again(above=claim.token)
        changes = {
            "status": Status.READY,
            "errors": with_error(claim.record.errors, error),
            "run_after": timezone.now() + timedelta(seconds=delay_s),
            "token": job.token,
        }
        return self._send_on(claim.job, job, due_ms, lambda: self._end(claim, changes))

    def put_off(self, job: Job, token: int, *, delay_s: float) -> bool:
        """Send a task that was not begun once more. A row that does not exist yet changes
        nothing.
        """
        due_ms, later = (
            now_ms() + round(delay_s * 1000),
            job.again(above=token, waits=job.waits + 1),
        )
        waiting = self._rows.filter(
            pk=job.id, status__in=(Status.READY, Status.RUNNING), token__lt=token
        )

        def change() -> bool:
            moved = waiting.update(token=later.token)
            return bool(moved) or not self._rows.filter(pk=job.id).exists()

        return self._send_on(job, later, due_ms, change)

    def _send_on(self, before: Job, later: Job, due_ms: int, change: Any) -> bool:
        if before.is_direct:
            # It is in no transaction: sent first, it may come twice, but never not at all.
            send(later, self._settings, due_ms=due_ms)
            return bool(change())
        with transaction.atomic(using=alias_of(self._settings)):
            if not change():
                return False
            send(later, self._settings, due_ms=due_ms)
        return True

    def _end(self, claim: Claim, changes: dict[str, Any]) -> bool:
        mine = self._rows.filter(pk=claim.job.id, status=Status.RUNNING, token=claim.token)
        if not mine.update(**changes):
            return False
        changed(claim.record, changes)
        return True


class NoRecords:
    """Nothing is kept: the messages say how often a task was begun."""

    def __init__(self, given: TaskSettings) -> None:
        self._settings = given

    def claim(self, job: Job, place: Place) -> Claim:
        deliveries = place.token - job.token
        before = job.attempts + max(0, deliveries - 1 - LEASES_NOT_COUNTED)
        record = in_memory(job, worker_ids=["?"] * before)
        if before >= job.max_attempts:
            error = WorkerLost(f"its workers ended, or lost their leases, {before} times")
            changed(record, _ended(Status.FAILED) | {"errors": with_error([], error)})
            return Claim(Verdict.USED_UP, job, place.token, record)
        changed(record, _begun(place, None, record.worker_ids))
        return Claim(Verdict.RUN, job, place.token, record)

    def claim_all(self, items: Sequence[tuple[Job, Place]]) -> list[Claim]:
        return [self.claim(job, place) for job, place in items]

    def succeed(self, claim: Claim, value: Any) -> bool:
        return self.succeed_all([(claim, value)])[0]

    def succeed_all(self, items: Sequence[tuple[Claim, Any]]) -> list[bool]:
        for claim, value in items:
            changed(claim.record, _ended(Status.SUCCESSFUL) | {"return_value": value})
        return [True] * len(items)

    def fail(self, claim: Claim, error: BaseException) -> bool:
        changed(claim.record, _ended(Status.FAILED) | {"errors": with_error([], error)})
        return True

    def retry(self, claim: Claim, error: BaseException, *, delay_s: float) -> bool:
        job = claim.job.again(above=claim.token, attempts=len(claim.record.worker_ids))
        send(job, self._settings, due_ms=now_ms() + round(delay_s * 1000))
        changed(claim.record, {"status": Status.READY, "errors": with_error([], error)})
        return True

    def put_off(self, job: Job, token: int, *, delay_s: float) -> bool:
        later = job.again(above=token, waits=job.waits + 1)
        send(later, self._settings, due_ms=now_ms() + round(delay_s * 1000))
        return True


def in_memory(job: Job, **changes: Any) -> TaskRecord:
    """Return the row of a job as far as its message tells it."""
    record = TaskRecord(
        id=job.id,
        path=job.path,
        queue_name=job.queue,
        priority=job.priority,
        backend_name=job.backend,
        args=job.args,
        kwargs=job.kwargs,
        enqueued_at=_time_of(job.enqueued_at_ms),
    )
    return changed(record, changes)


def changed(record: TaskRecord, changes: Mapping[str, Any]) -> TaskRecord:
    for name, value in changes.items():
        setattr(record, name, value)
    return record


def with_error(errors: list[dict[str, str]], error: BaseException) -> list[dict[str, str]]:
    """Return the errors of a task with one more; of many the first goes."""
    kind = type(error)
    text = getattr(error, "told", None) or "".join(format_exception(error))
    if len(text) > MOST_TRACEBACK:
        half = MOST_TRACEBACK // 2
        text = f"{text[:half]}\n[…]\n{text[-half:]}"
    one = {
        "exception_class_path": f"{kind.__module__}.{kind.__qualname__}",
        "traceback": text.encode(errors="replace").decode().replace("\0", "?"),
    }
    return [*errors, one][-MOST_ERRORS:]


def _begun(place: Place, started_at: Any, workers: list[str]) -> dict[str, Any]:
    now = timezone.now()
    return {
        "status": Status.RUNNING,
        "token": place.token,
        "started_at": started_at or now,
        "last_attempted_at": now,
        "worker_ids": [*workers, place.worker],
        "message_id": place.message_id[:64],
    }


def _is_claimed(record: TaskRecord, place: Place) -> bool:
    """Return True if a task is at work in this very delivery."""
    is_mine = record.status == Status.RUNNING and record.token == place.token
    return is_mine and record.worker_ids[-1:] == [place.worker]


def _time_of(at_ms: int) -> datetime:
    found = datetime.fromtimestamp(at_ms / 1000, UTC)
    return found if settings.USE_TZ else timezone.make_naive(found)


def _ended(status: str) -> dict[str, Any]:
    return {"status": status, "finished_at": timezone.now()}
