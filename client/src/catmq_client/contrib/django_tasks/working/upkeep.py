"""Operations on the rows of tasks: retry, resend, discard, prune, count."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, cast

from django.db import transaction
from django.db.models import Count, Min, Q, QuerySet
from django.utils import timezone

from catmq_client.contrib.django_tasks.compat import task_backends
from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.contrib.django_tasks.enqueueing import build_job
from catmq_client.contrib.django_tasks.jobs import (
    TOKENS_A_MESSAGE,
    database_alias,
    send_job,
)
from catmq_client.contrib.django_tasks.models import TaskRecord
from catmq_client.contrib.django_tasks.task import AnyTask, TaskMissing

log: logging.Logger = logging.getLogger("catmq.tasks")

Status = TaskRecord.Status
# Rows of one DELETE.
PRUNE_ROWS = 1_000
# A worker that starts warns of tasks that have waited for longer, because topics keep
# messages for 7 days by default.
OLD = timedelta(days=7)


def find_settings(alias: str) -> TaskSettings:
    """Return the settings of a backend. Raises ValueError if it is no CatmqBackend."""
    backend: Any = task_backends[alias]
    if not isinstance(getattr(backend, "settings", None), TaskSettings):
        raise ValueError(f"backend {alias!r} of TASKS is no CatmqBackend")
    return cast(TaskSettings, backend.settings)


def retry(settings: TaskSettings, ids: Iterable[str]) -> int:
    """Give failed or discarded tasks one more attempt now. Return the number of tasks."""
    statuses = (Status.FAILED, Status.DISCARDED)
    return sum(_send_again(settings, task_id, statuses, more_attempts=1) for task_id in ids)


def resend(settings: TaskSettings, *, older_than: timedelta) -> int:
    """Send due tasks again that were enqueued more than `older_than` ago. Return the number
    of tasks.

    Brokers may have deleted their messages: without consumers in the group, unread messages
    are deleted by retention, too. A message that still exists has a lower token and has no
    effect any more.
    """
    ids = (
        _due_rows(settings)
        .filter(enqueued_at__lt=timezone.now() - older_than)
        .values_list("pk", flat=True)
    )
    return sum(_send_again(settings, task_id, (Status.READY,)) for task_id in [*ids])


def waiting_since(settings: TaskSettings) -> dict[str, datetime]:
    """Return by queue when the oldest due task was enqueued."""
    return dict(
        _due_rows(settings)
        .order_by()
        .values_list("queue_name")
        .annotate(Min("enqueued_at"))
    )


def warn_of_old_tasks(settings: TaskSettings) -> None:
    """Log the queues with tasks so old that brokers may have deleted their messages."""
    if settings.results == "none":
        return
    for queue, since in sorted(waiting_since(settings).items()):
        if since < timezone.now() - OLD:
            log.warning(
                "queue %s has a task that is due and was enqueued at %s: its message "
                "may be deleted by now; catmq_tasks resend sends such tasks again",
                queue,
                f"{since:%Y-%m-%d %H:%M}",
            )


def _due_rows(settings: TaskSettings) -> QuerySet[TaskRecord]:
    rows = TaskRecord.objects.using(database_alias(settings)).filter(
        backend_name=settings.alias
    )
    is_due = Q(run_after__isnull=True) | Q(run_after__lte=timezone.now())
    return rows.filter(is_due, status=Status.READY)


def _send_again(
    settings: TaskSettings, task_id: str, statuses: Sequence[str], *, more_attempts: int = 0
) -> bool:
    """Make a task READY and send a new message for it. Return False if its status is not in
    `statuses`.
    """
    alias = database_alias(settings)
    rows = TaskRecord.objects.using(alias).filter(pk=task_id, backend_name=settings.alias)
    with transaction.atomic(using=alias):
        record = rows.filter(status__in=statuses).first()
        if record is None:
            return False
        # Higher than the tokens of all earlier messages, which have no effect any more.
        token = (record.token // TOKENS_A_MESSAGE + 1) * TOKENS_A_MESSAGE
        max_attempts = (
            len(record.worker_ids) + more_attempts if more_attempts else record.max_attempts
        )
        # 0 rows if a worker or another operator changed the row since it was read.
        if not rows.filter(status=record.status, token=record.token).update(
            run_after=timezone.now(),
            status=Status.READY,
            token=token,
            max_attempts=max_attempts,
            finished_at=None,
        ):
            return False
        record.max_attempts, record.run_after = max_attempts, None
        task: AnyTask | None = None
        with suppress(TaskMissing):
            task = record.task
        send_job(build_job(record, task, settings, token=token), settings)
    return True


def discard(settings: TaskSettings, ids: Iterable[str]) -> int:
    """Discard tasks that wait or have failed, so that they never run. Return the number of
    tasks. Running tasks are not affected.
    """
    rows = TaskRecord.objects.using(database_alias(settings)).filter(
        pk__in=[*ids], backend_name=settings.alias
    )
    discardable = rows.filter(status__in=(Status.READY, Status.FAILED))
    return discardable.update(status=Status.DISCARDED, finished_at=timezone.now())


def prune(settings: TaskSettings, *, limit: int = PRUNE_ROWS) -> int:
    """Delete up to `limit` tasks that ended before result_days or failed_days. Return the
    number of tasks.
    """
    rows = TaskRecord.objects.using(database_alias(settings))
    now, deleted = timezone.now(), 0
    for statuses, days in (
        ((Status.SUCCESSFUL, Status.DISCARDED), settings.result_days),
        ((Status.FAILED,), settings.failed_days),
    ):
        for status in statuses:
            # The index (status, finished_at) serves one status at a time.
            expired = rows.filter(
                status=status, finished_at__lt=now - timedelta(days=days)
            ).order_by("finished_at")
            ids = [
                *expired.filter(backend_name=settings.alias).values_list("pk", flat=True)[
                    : limit - deleted
                ]
            ]
            deleted += rows.filter(pk__in=ids, status=status).delete()[0] if ids else 0
    return deleted


def count_tasks(settings: TaskSettings) -> dict[tuple[str, str], int]:
    """Return the number of tasks by (queue, status)."""
    counts = (
        TaskRecord.objects.using(database_alias(settings))
        .filter(backend_name=settings.alias)
        .order_by()
        .values_list("queue_name", "status")
        .annotate(Count("pk"))
    )
    return {(queue, status): number for queue, status, number in counts}
