"""The tables of tasks, in the same database as the outbox.

All times are from the clock of the process that writes them, as Django's timezone.now()
returns them. They are compared only to decide which rows to delete, resend or enqueue by a
schedule; who may change a row is decided by its token.
"""

from __future__ import annotations

from django.db import models

from catmq_client.contrib.django_tasks.compat import TaskError, TaskResultStatus
from catmq_client.contrib.django_tasks.task import (
    AnyResult,
    AnyTask,
    copy_unchecked,
    find_task,
)


class TaskRecord(models.Model):
    """A task and its result.

    `token` fences the row. Each delivery of the task's messages has a number, which is higher
    than those of all earlier deliveries (Job.delivery_token). A claim writes the number of its
    delivery here, and only if that raises the token. A worker writes the outcome only if the
    row still has the token of its claim.
    """

    class Status(models.TextChoices):
        READY = "READY"
        RUNNING = "RUNNING"
        FAILED = "FAILED"
        SUCCESSFUL = "SUCCESSFUL"
        DISCARDED = "DISCARDED"  # by an operator; Django's interface shows FAILED

    id = models.CharField(max_length=32, primary_key=True)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.READY)
    path = models.CharField(max_length=255)
    queue_name = models.CharField(max_length=128)
    priority = models.SmallIntegerField()
    backend_name = models.CharField(max_length=128)
    args = models.JSONField()
    kwargs = models.JSONField()
    run_after = models.DateTimeField(null=True)
    # None: the limit in the message applies.
    max_attempts = models.PositiveSmallIntegerField(null=True)
    token = models.BigIntegerField(default=0)
    enqueued_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    last_attempted_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    return_value = models.JSONField(null=True)
    errors = models.JSONField(default=list)
    worker_ids = models.JSONField(default=list)
    # The message of the last claim.
    message_id = models.CharField(max_length=64, blank=True)

    class Meta:
        db_table = "catmq_task"
        verbose_name = "task"
        ordering = ("-enqueued_at",)
        indexes = (
            models.Index(fields=("status", "finished_at"), name="catmq_task_finished"),
            models.Index(
                fields=("queue_name", "status", "enqueued_at"), name="catmq_task_queue"
            ),
        )

    def __str__(self) -> str:
        return f"{self.path} {self.pk}"

    @property
    def task(self) -> AnyTask:
        """The task with the options with which it was enqueued. Raises TaskMissing."""
        return copy_unchecked(
            find_task(self.path),
            priority=self.priority,
            queue_name=self.queue_name,
            backend=self.backend_name,
            run_after=self.run_after,
            max_attempts=self.max_attempts,
        )

    @property
    def is_over(self) -> bool:
        return self.status not in (self.Status.READY, self.Status.RUNNING)

    def result(self, task: AnyTask) -> AnyResult:
        """Return the row as a TaskResult of Django's interface."""
        result = AnyResult(
            task=task,
            id=self.id,
            status=TaskResultStatus.FAILED
            if self.status == self.Status.DISCARDED
            else TaskResultStatus[self.status],
            enqueued_at=self.enqueued_at,
            started_at=self.started_at,
            last_attempted_at=self.last_attempted_at,
            finished_at=self.finished_at,
            args=self.args,
            kwargs=self.kwargs,
            backend=self.backend_name,
            errors=[TaskError(**error) for error in self.errors],
            worker_ids=[*self.worker_ids],
        )
        # The dataclass is frozen, and its constructor has no argument for the return value.
        object.__setattr__(result, "_return_value", self.return_value)
        return result


class TaskSchedule(models.Model):
    """A schedule and the time when its task is next enqueued.

    Whichever worker moves `due_at` to the next time enqueues the task in the same transaction.
    """

    name = models.CharField(max_length=200, primary_key=True)
    rule = models.CharField(max_length=200)
    due_at = models.DateTimeField()

    class Meta:
        db_table = "catmq_task_schedule"
        verbose_name = "schedule"

    def __str__(self) -> str:
        return self.name
