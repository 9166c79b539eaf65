"""The rows under the names of django-tasks-db."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import models
from django.db.models import Q
from django.utils import timezone

from catmq_client.contrib.django_tasks.enqueueing import build_job
from catmq_client.contrib.django_tasks.jobs import send_job
from catmq_client.contrib.django_tasks.models import TaskRecord
from catmq_client.contrib.django_tasks.task import TaskMissing
from catmq_client.contrib.django_tasks.working.upkeep import find_settings
from catmq_client.sending.ids import uuid7


class Rows(models.QuerySet["DBTaskResult"]):
    """Queries of django-tasks-db."""

    def ready(self) -> Rows:
        return self.filter(
            Q(run_after=None) | Q(run_after__lte=timezone.now()), status="READY"
        )

    def successful(self) -> Rows:
        return self.filter(status="SUCCESSFUL")

    def failed(self) -> Rows:
        return self.filter(status="FAILED")

    def running(self) -> Rows:
        return self.filter(status="RUNNING")

    def finished(self) -> Rows:
        return self.filter(status__in=("FAILED", "SUCCESSFUL"))

    def create(self, **given: Any) -> Any:
        """Make a row with its message, as a task that was enqueued by another release."""
        both = given.pop("args_kwargs")
        record = self.model(
            id=uuid7().replace("-", ""),
            path=given.pop("task_path"),
            queue_name="default",
            priority=given.pop("priority", 0),
            enqueued_at=timezone.now(),
            **both,
            **given,
        )
        record.save(force_insert=True)
        settings = find_settings("default")
        send_job(build_job(record, None, settings), settings)
        return record


class DBTaskResult(TaskRecord):
    """A row of catmq_task."""

    objects = Rows.as_manager()

    class Meta:
        proxy = True
        ordering = ()

    @property
    def task_name(self) -> str:
        try:
            return str(self.task.name)
        except TaskMissing:
            return self.path.rpartition(".")[2]

    @property
    def task(self) -> Any:
        """As there: another error for what can be imported and is no task."""
        from django.core.exceptions import SuspiciousOperation

        try:
            return super().task
        except TaskMissing as error:
            if "is no task" not in str(error):
                raise
            raise SuspiciousOperation(
                f"Task {self.id} does not point to a Task ({self.path})"
            ) from error

    @property
    def traceback(self) -> str:
        return str(self.errors[-1]["traceback"])


def get_date_max() -> datetime:
    """Of a migration of django-tasks-db."""
    return datetime.max
