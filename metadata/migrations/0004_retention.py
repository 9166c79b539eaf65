"""Alarms, how full nodes are, and when groups last read: what retention needs to know."""

from __future__ import annotations

from django.db import migrations, models

import metadata.models.fields


class Migration(migrations.Migration):
    """Groups that are there count as active since they subscribed."""

    dependencies = (("metadata", "0003_queue_state_since"),)

    operations = (
        migrations.CreateModel(
            name="Alarm",
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
                    "kind",
                    models.CharField(
                        choices=[
                            ("unread_dropped", "Unread Dropped"),
                            ("node_low", "Node Low"),
                            ("node_full", "Node Full"),
                            ("not_cleaned", "Not Cleaned"),
                        ],
                        max_length=20,
                    ),
                ),
                ("name", metadata.models.fields.NameField(max_length=421)),
                ("detail", models.CharField(max_length=1000)),
                ("count", models.BigIntegerField(default=0)),
                ("first_at", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ("-last_at", "-id"),
            },
        ),
        migrations.CreateModel(
            name="ClockMark",
            fields=[
                (
                    "host",
                    models.CharField(max_length=200, primary_key=True, serialize=False),
                ),
                ("boot", models.CharField(max_length=100)),
                ("elapsed_s", models.FloatField()),
                ("at", models.DateTimeField()),
            ],
            options={
                "ordering": ("host",),
            },
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="active_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="progress",
            field=models.BigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="dbnode",
            name="disk",
            field=models.CharField(
                choices=[("ok", "Ok"), ("low", "Low"), ("full", "Full")],
                default="ok",
                max_length=4,
            ),
        ),
        migrations.AddConstraint(
            model_name="dbnode",
            constraint=models.CheckConstraint(
                condition=models.Q(("disk__in", ("ok", "low", "full"))), name="db_node_disk"
            ),
        ),
        migrations.AddConstraint(
            model_name="alarm",
            constraint=models.UniqueConstraint(
                fields=("kind", "name"), name="alarm_kind_name"
            ),
        ),
        migrations.AddConstraint(
            model_name="alarm",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("kind__in", ("unread_dropped", "node_low", "node_full", "not_cleaned"))
                ),
                name="alarm_kind",
            ),
        ),
    )
