"""Rights of people in the portal; counts of messages by minute, quarter, day; lag of
subscriptions.
"""

from __future__ import annotations

from django.db import migrations, models

import metadata.models.fields


class Migration(migrations.Migration):
    """Only adds; nothing that was there is looked at."""

    dependencies = (("metadata", "0009_limits_and_moves"),)

    operations = (
        migrations.CreateModel(
            name="UserRights",
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
                ("name", metadata.models.fields.NameField(max_length=150, unique=True)),
                ("rights", models.JSONField(default=dict)),
            ],
            options={
                "verbose_name_plural": "user rights",
                "ordering": ("name",),
            },
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="lag",
            field=models.BigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="lag_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="lag_ms",
            field=models.BigIntegerField(blank=True, null=True),
        ),
        migrations.CreateModel(
            name="Sample",
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
                (
                    "step_s",
                    models.PositiveIntegerField(
                        choices=[(60, "Minute"), (900, "Quarter"), (86400, "Day")],
                        default=60,
                    ),
                ),
                ("at", models.DateTimeField()),
                ("topic_ref", models.BigIntegerField()),
                ("group_ref", models.BigIntegerField(default=0)),
                ("messages", models.BigIntegerField(default=0)),
                ("bytes", models.BigIntegerField(default=0)),
                ("errors", models.BigIntegerField(default=0)),
                ("lag", models.BigIntegerField(blank=True, null=True)),
                ("lag_ms", models.BigIntegerField(blank=True, null=True)),
            ],
            options={
                "ordering": ("at", "id"),
                "indexes": [models.Index(fields=["step_s", "at"], name="sample_step_at")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("step_s", "topic_ref", "group_ref", "at"),
                        name="sample_step_of_what",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("step_s__in", (60, 900, 86400))),
                        name="sample_step",
                    ),
                ],
            },
        ),
    )
