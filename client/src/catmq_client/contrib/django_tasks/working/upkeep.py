"""Rows of tasks as operators and time change them: retry, resend, discard, prune, counts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Count, Min, Q, QuerySet
from django.utils import timezone

from catmq_client.contrib.django_tasks.compat import task_backends
from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.contrib.django_tasks.enqueueing import job_of
from catmq_client.contrib.django_tasks.jobs import TOKENS_A_MESSAGE, alias_of, send
from catmq_client.contrib.django_tasks.models import TaskRecord
from catmq_client.contrib.django_tasks.task import AnyTask, TaskMissing

log = logging.getLogger("catmq.tasks")

Status = TaskRecord.Status
# Deleted at once.
PRUNE_ROWS = 1_000
# Workers that start tell of tasks that have waited for longer: topics keep messages for 7
# days by default.
OLD = timedelta(days=7)


def settings_of(alias: str) -> TaskSettings:
    """Return the settings of a backend. Raises ValueError if it is none of ours."""
    backend: Any = task_backends[alias]
    if not isinstance(getattr(backend, "settings", None), TaskSettings):
        raise ValueError(f"backend {alias!r} of TASKS is no CatmqBackend")
    found: TaskSettings = backend.settings
    return found


def retry(settings: TaskSettings, ids: Iterable[str]) -> int:
    """Give tasks that have failed or were discarded one more attempt, now; return their
    number.
    """
    return sum(_retry_one(settings, task_id) for task_id in ids)


def resend(settings: TaskSettings, *, older_than: timedelta) -> int:
    """Send tasks again that are due and have waited for so long; return their number.

    Brokers may have deleted their messages, which they keep for no group that nobody works
    for. A message that is still there does nothing any more.
    """
    ids = (
        _waiting(settings)
        .filter(enqueued_at__lt=timezone.now() - older_than)
        .values_list("pk", flat=True)
    )
    return sum(_send_again(settings, task_id, (Status.READY,)) for task_id in [*ids])


def waiting_since(settings: TaskSettings) -> dict[str, datetime]:
    """Return when the oldest task that is due was enqueued, by queue."""
    return dict(
        _waiting(settings).order_by().values_list("queue_name").annotate(Min("enqueued_at"))
    )


def warn_of_old(settings: TaskSettings) -> None:
    """Say which queues have tasks so old that brokers may have deleted their messages."""
    if settings.results == "none":
        return
    for queue, since in sorted(waiting_since(settings).items()):
        if since < timezone.now() - OLD:
            what = (
                "queue %s has a task that is due and was enqueued at %s: its message "
                "may be deleted by now"
            )
            log.warning(
                f"{what}; catmq_tasks resend sends such tasks again",
                queue,
                f"{since:%Y-%m-%d %H:%M}",
            )


def _waiting(settings: TaskSettings) -> QuerySet[TaskRecord]:
    rows = TaskRecord.objects.using(alias_of(settings)).filter(backend_name=settings.alias)
    is_due = Q(run_after__isnull=True) | Q(run_after__lte=timezone.now())
    return rows.filter(is_due, status=Status.READY)


def _retry_one(settings: TaskSettings, task_id: str) -> bool:
    return _send_again(
        settings, task_id, (Status.FAILED, Status.DISCARDED), more_attempts=1
    )


def _send_again(
    settings: TaskSettings, task_id: str, statuses: Sequence[str], *, more_attempts: int = 0
) -> bool:
    """Make a task wait anew; False if its status is another. Its earlier messages have
    lower tokens.
    """
    alias = alias_of(settings)
    rows = TaskRecord.objects.using(alias).filter(pk=task_id, backend_name=settings.alias)
    with transaction.atomic(using=alias):
        record = rows.filter(status__in=statuses).first()
        if record is None:
            return False
        token = (record.token // TOKENS_A_MESSAGE + 1) * TOKENS_A_MESSAGE
        most = (
            len(record.worker_ids) + more_attempts if more_attempts else record.max_attempts
        )
        changes = {
            "status": Status.READY,
            "token": token,
            "max_attempts": most,
            "finished_at": None,
        }
        mine = rows.filter(status=record.status, token=record.token)
        if not mine.update(run_after=timezone.now(), **changes):
            return False
        record.max_attempts, record.run_after = most, None
        send(job_of(record, _task_of(record), settings, token=token), settings)
    return True


def _task_of(record: TaskRecord) -> AnyTask | None:
    try:
        return record.task
    except TaskMissing:
        return None


def discard(settings: TaskSettings, ids: Iterable[str]) -> int:
    """Let tasks that wait or have failed never run; return their number. One at work goes
    on.
    """
    rows = TaskRecord.objects.using(alias_of(settings)).filter(
        pk__in=[*ids], backend_name=settings.alias
    )
    waiting = rows.filter(status__in=(Status.READY, Status.FAILED))
    return waiting.update(status=Status.DISCARDED, finished_at=timezone.now())


def prune(settings: TaskSettings, *, most: int = PRUNE_ROWS) -> int:
    """Delete up to so many tasks that ended too long ago; return their number."""
    rows = TaskRecord.objects.using(alias_of(settings))
    now, deleted = timezone.now(), 0
    for statuses, days in (
        ((Status.SUCCESSFUL, Status.DISCARDED), settings.result_days),
        ((Status.FAILED,), settings.failed_days),
    ):
        for status in statuses:
            old = rows.filter(
                status=status, finished_at__lt=now - timedelta(days=days)
            ).order_by("finished_at")
            ids = [
                *old.filter(backend_name=settings.alias).values_list("pk", flat=True)[
                    : most - deleted
                ]
            ]
            deleted += rows.filter(pk__in=ids, status=status).delete()[0] if ids else 0
    return deleted


def counts(settings: TaskSettings) -> dict[tuple[str, str], int]:
    """Return the number of tasks by queue and status."""
    rows = (
        TaskRecord.objects.using(alias_of(settings))
        .filter(backend_name=settings.alias)
        .order_by()
    )
    told = rows.values_list("queue_name", "status").annotate(Count("pk"))
    return {(queue, status): number for queue, status, number in told}
