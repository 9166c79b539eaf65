"""The tables, and the rows to lock: one for each slot of keys, so that nobody waits to make
one.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from catmq_client.sending.routing import SLOTS


def make_lanes(apps: Any, editor: Any) -> None:
    lanes = apps.get_model("catmq_outbox", "OutboxLane").objects.using(
        editor.connection.alias
    )
    lanes.bulk_create([lanes.model(slot=slot) for slot in range(SLOTS)])


class Migration(migrations.Migration):
    initial = True

    dependencies: ClassVar[list[Any]] = []

    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="OutboxLane",
            fields=[
                (
                    "slot",
                    models.PositiveSmallIntegerField(primary_key=True, serialize=False),
                ),
            ],
        ),
        migrations.CreateModel(
            name="OutboxRelay",
            fields=[
                (
                    "id",
                    models.PositiveSmallIntegerField(
                        default=1, primary_key=True, serialize=False
                    ),
                ),
                ("holder", models.CharField(blank=True, max_length=100)),
                ("seen_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="InboxMessage",
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
                ("scope", models.CharField(max_length=200)),
                ("identity", models.CharField(max_length=200)),
                ("handled_at", models.DateTimeField()),
            ],
            options={
                "indexes": [
                    models.Index(fields=["handled_at"], name="catmq_inbox_handled_at")
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("scope", "identity"), name="catmq_inbox_scope_identity"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="OutboxMessage",
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
                ("topic", models.CharField(max_length=210)),
                ("key", models.CharField(max_length=200, null=True)),
                ("slot", models.PositiveSmallIntegerField(null=True)),
                ("tag", models.CharField(max_length=100, null=True)),
                ("headers", models.TextField()),
                ("trace_id", models.CharField(max_length=100, null=True)),
                ("body", models.BinaryField()),
                ("size", models.PositiveIntegerField()),
                ("created_at", models.DateTimeField()),
                (
                    "state",
                    models.PositiveSmallIntegerField(
                        choices=[
                            (0, "Waiting"),
                            (1, "Claimed"),
                            (2, "Failed"),
                            (3, "Held"),
                        ],
                        default=0,
                    ),
                ),
                ("batch_id", models.UUIDField(null=True)),
                ("queue", models.BigIntegerField(null=True)),
                ("error", models.TextField(blank=True)),
            ],
            options={
                "ordering": ("id",),
                "indexes": [
                    models.Index(fields=["state", "id"], name="catmq_outbox_state"),
                    models.Index(fields=["batch_id"], name="catmq_outbox_batch"),
                ],
            },
        ),
        migrations.RunPython(make_lanes, migrations.RunPython.noop),
    ]
