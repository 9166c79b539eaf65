"""Records about operation: AuditLog, JobRun, Lease, ChangeCounter, ChangeLog."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from metadata.models.fields import (
    MAX_NAME,
    NamedModel,
    NameField,
    enum_field,
    value_constraint,
)
from metadata.rules.jobs import JobState


class AuditLog(models.Model):
    """A change: the actor, the object, and its values before and after. `before` is null for
    a new object, `after` for a deleted one.
    """

    at = models.DateTimeField(db_index=True)
    actor_kind = models.CharField(max_length=10)
    actor_name = NameField(max_length=MAX_NAME)
    address = models.CharField(max_length=100, blank=True)
    verb = models.CharField(max_length=30)
    kind = models.CharField(max_length=20)
    name = NameField(max_length=2 * MAX_NAME, db_index=True)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.verb} {self.kind} {self.name}"


class JobRun(models.Model):
    """A run of a job. `stage`, `done` and `total` are its progress. `directory` is the
    working directory of a Spark job.

    A run of the data pipeline may be requested by the user `asked_by` with `settings`. A
    process claims it, and regularly records that it is alive (`seen_at`) and the end of its
    `log`, so that users can read the log of any machine.
    """

    name = models.CharField(max_length=100)
    state = enum_field(JobState, JobState.RUNNING)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    count = models.BigIntegerField(null=True, blank=True)
    detail = models.TextField(blank=True)
    stage = models.CharField(max_length=200, blank=True)
    done = models.BigIntegerField(default=0)
    total = models.BigIntegerField(default=0)
    directory = models.CharField(max_length=1000, blank=True)
    cancel_asked = models.BooleanField(default=False)
    asked_by = models.CharField(max_length=MAX_NAME, blank=True)
    settings = models.JSONField(default=dict)
    seen_at = models.DateTimeField(null=True, blank=True)
    log = models.TextField(blank=True)

    class Meta:
        ordering = ("-id",)
        indexes = (models.Index(fields=("name", "id"), name="job_run_name"),)
        constraints = (value_constraint("state", JobState, name="job_run_state"),)

    def __str__(self) -> str:
        return f"{self.name} {self.state}"


class Lease(NamedModel):
    """The process that may run a periodic job. `term` grows with every new holder."""

    name = NameField(max_length=MAX_NAME, primary_key=True)
    holder = models.CharField(max_length=200)
    term = models.BigIntegerField(default=1)
    expires_at = models.DateTimeField()


class ChangeCounter(models.Model):
    """A single row (id 1) whose number every change of the metadata raises. Its lock orders
    the changes.
    """

    id = models.PositiveSmallIntegerField(primary_key=True)
    incarnation = models.CharField(max_length=36)  # created with the metadata database
    n = models.BigIntegerField(default=0)

    class Meta:
        constraints = (
            models.CheckConstraint(condition=Q(id=1), name="change_counter_single"),
        )

    def __str__(self) -> str:
        return f"change {self.n}"


class ChangeLog(models.Model):
    """A row that change `n` changed. Brokers load the rows of all `n` above their own."""

    n = models.BigIntegerField()
    kind = models.CharField(max_length=20)
    row = models.BigIntegerField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("n", "kind", "row"), name="change_log_n"),
        )

    def __str__(self) -> str:
        return f"{self.n}: {self.kind} {self.row}"
