"""Report and ReportRow: stored results of report jobs."""

from __future__ import annotations

from django.db import models


class Report(models.Model):
    """A report. `columns` are the names of its columns, in order."""

    name = models.CharField(max_length=100)
    # spark, or direct: computed from log end offsets and partitions alone
    engine = models.CharField(max_length=20)
    made_at = models.DateTimeField()
    settings = models.JSONField(default=dict)
    columns = models.JSONField(default=list)
    job_run = models.ForeignKey(
        "JobRun", null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = ("-id",)
        indexes = (models.Index(fields=("name", "id"), name="report_name"),)

    def __str__(self) -> str:
        return f"{self.name} {self.pk}"


class ReportRow(models.Model):
    """A row of a report. `number` counts from 0."""

    report = models.ForeignKey(Report, on_delete=models.CASCADE, related_name="rows")
    number = models.PositiveIntegerField()
    values = models.JSONField()

    class Meta:
        ordering = ("report", "number")
        constraints = (
            models.UniqueConstraint(fields=("report", "number"), name="report_row_number"),
        )

    def __str__(self) -> str:
        return f"{self.report_id}: {self.number}"
