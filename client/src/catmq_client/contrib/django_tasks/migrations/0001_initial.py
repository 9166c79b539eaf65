"""The rows of tasks, and of schedules."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies: ClassVar[list[Any]] = []

    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="TaskSchedule",
            fields=[
                (
                    "name",
                    models.CharField(max_length=200, primary_key=True, serialize=False),
                ),
                ("rule", models.CharField(max_length=200)),
                ("due_at", models.DateTimeField()),
            ],
            options={
                "verbose_name": "schedule",
                "db_table": "catmq_task_schedule",
            },
        ),
        migrations.CreateModel(
            name="TaskRecord",
            fields=[
                ("id", models.CharField(max_length=32, primary_key=True, serialize=False)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("READY", "Ready"),
                            ("RUNNING", "Running"),
                            ("FAILED", "Failed"),
                            ("SUCCESSFUL", "Successful"),
                            ("DISCARDED", "Discarded"),
                        ],
                        default="READY",
                        max_length=10,
                    ),
                ),
                ("path", models.CharField(max_length=255)),
                ("queue_name", models.CharField(max_length=128)),
                ("priority", models.SmallIntegerField()),
                ("backend_name", models.CharField(max_length=128)),
                ("args", models.JSONField()),
                ("kwargs", models.JSONField()),
                ("run_after", models.DateTimeField(null=True)),
                ("max_attempts", models.PositiveSmallIntegerField(null=True)),
                ("token", models.BigIntegerField(default=0)),
                ("enqueued_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("last_attempted_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("return_value", models.JSONField(null=True)),
                ("errors", models.JSONField(default=list)),
                ("worker_ids", models.JSONField(default=list)),
                ("message_id", models.CharField(blank=True, max_length=64)),
            ],
            options={
                "verbose_name": "task",
                "db_table": "catmq_task",
                "ordering": ("-enqueued_at",),
                "indexes": [
                    models.Index(
                        fields=["status", "finished_at"], name="catmq_task_finished"
                    ),
                    models.Index(
                        fields=["queue_name", "status", "enqueued_at"],
                        name="catmq_task_queue",
                    ),
                ],
            },
        ),
    ]
