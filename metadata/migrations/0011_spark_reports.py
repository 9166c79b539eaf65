"""What Spark jobs need: runs that say where they are and can be cancelled; reports."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Runs that ended before stay as they are."""

    dependencies = (("metadata", "0010_portal_and_series"),)

    operations = (
        migrations.CreateModel(
            name="Report",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True,
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                ("name", models.CharField(max_length=100)),
                ("engine", models.CharField(max_length=20)),
                ("made_at", models.DateTimeField()),
                ("settings", models.JSONField(default=dict)),
                ("columns", models.JSONField(default=list)),
            ],
            options={
                "ordering": ("-id",),
            },
        ),
        migrations.CreateModel(
            name="ReportRow",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True,
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                ("values", models.JSONField()),
            ],
            options={
                "ordering": ("report", "number"),
            },
        ),
        migrations.RemoveConstraint(
            model_name="jobrun",
            name="job_run_state",
        ),
        migrations.AddField(
            model_name="jobrun",
            name="cancel_asked",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="jobrun",
            name="directory",
            field=models.CharField(blank=True, max_length=1000),
        ),
        migrations.AddField(
            model_name="jobrun",
            name="done",
            field=models.BigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="jobrun",
            name="stage",
            field=models.CharField(blank=True, max_length=200),
        ),
        migrations.AddField(
            model_name="jobrun",
            name="total",
            field=models.BigIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name="jobrun",
            name="state",
            field=models.CharField(
                choices=[
                    ("running", "Running"),
                    ("done", "Done"),
                    ("failed", "Failed"),
                    ("cancelled", "Cancelled"),
                ],
                default="running",
                max_length=10,
            ),
        ),
        migrations.AddConstraint(
            model_name="jobrun",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("state__in", ("running", "done", "failed", "cancelled"))
                ),
                name="job_run_state",
            ),
        ),
        migrations.AddField(
            model_name="report",
            name="job_run",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="metadata.jobrun",
            ),
        ),
        migrations.AddField(
            model_name="reportrow",
            name="report",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="rows",
                to="metadata.report",
            ),
        ),
        migrations.AddIndex(
            model_name="report",
            index=models.Index(fields=["name", "id"], name="report_name"),
        ),
        migrations.AddConstraint(
            model_name="reportrow",
            constraint=models.UniqueConstraint(
                fields=("report", "number"), name="report_row_number"
            ),
        ),
    )
