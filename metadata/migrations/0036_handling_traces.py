"""Traces of how messages were handled, and the share of them that a subscription asks for."""

from __future__ import annotations

from django.db import migrations, models

from metadata.models.fields import NameField


class Migration(migrations.Migration):
    """A column with a default of the database, and a new table."""

    dependencies = (("metadata", "0035_topic_producers"),)

    operations = (
        migrations.AddField(
            model_name="consumergrouptopic",
            name="trace_percent",
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.CreateModel(
            name="HandlingTrace",
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
                ("group_ref", models.BigIntegerField()),
                ("queue_ref", models.BigIntegerField()),
                ("message_offset", models.BigIntegerField()),
                ("member", NameField(max_length=210)),
                ("attempt", models.PositiveIntegerField(default=0)),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("handled", "Handled"),
                            ("failed", "Failed"),
                            ("delivered", "Delivered"),
                        ],
                        max_length=10,
                    ),
                ),
                ("at", models.DateTimeField(db_index=True)),
                ("took_ms", models.BigIntegerField(blank=True, null=True)),
            ],
            options={
                "ordering": ("at", "id"),
                "indexes": (
                    models.Index(
                        fields=("queue_ref", "message_offset"), name="trace_message"
                    ),
                    models.Index(fields=("group_ref", "id"), name="trace_group"),
                ),
                "constraints": (
                    models.CheckConstraint(
                        condition=models.Q(outcome__in=("handled", "failed", "delivered")),
                        name="trace_outcome",
                    ),
                ),
            },
        ),
    )
