"""Redrives of dead messages."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

import metadata.models.fields


class Migration(migrations.Migration):
    dependencies = (("metadata", "0007_delivery"),)

    operations = (
        migrations.CreateModel(
            name="Redrive",
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
                ("topic_id", models.BigIntegerField(null=True)),
                ("topic", metadata.models.fields.NameField(blank=True, max_length=210)),
                ("error_class", models.CharField(max_length=100, null=True)),
                ("chosen", models.JSONField(null=True)),
                (
                    "to",
                    models.CharField(
                        choices=[("group", "Group"), ("topic", "Topic")], max_length=5
                    ),
                ),
                ("rate", models.PositiveIntegerField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("running", "Running"),
                            ("done", "Done"),
                            ("stopped", "Stopped"),
                            ("failed", "Failed"),
                        ],
                        default="running",
                        max_length=10,
                    ),
                ),
                ("bounds", models.JSONField(default=dict)),
                ("places", models.JSONField(default=dict)),
                ("total", models.BigIntegerField()),
                ("redriven", models.BigIntegerField(default=0)),
                ("skipped", models.BigIntegerField(default=0)),
                ("detail", models.CharField(blank=True, max_length=1000)),
                ("asked_by", metadata.models.fields.NameField(max_length=210)),
                ("created_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "group",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="redrives",
                        to="metadata.consumergroup",
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["group", "id"], name="redrive_group"),
                    models.Index(fields=["state"], name="redrive_state"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("to__in", ("group", "topic"))),
                        name="redrive_to",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ("running", "done", "stopped", "failed"))
                        ),
                        name="redrive_state_known",
                    ),
                ],
            },
        ),
    )
