"""What groups, their rebalances and the registry of brokers need."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

import metadata.models.fields


class Migration(migrations.Migration):
    dependencies = (("metadata", "0001_initial"),)

    operations = (
        migrations.AddField(
            model_name="broker",
            name="stopped_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="broker",
            name="version",
            field=models.CharField(blank=True, max_length=50),
        ),
        migrations.AddField(
            model_name="broker",
            name="incarnation",
            field=models.CharField(blank=True, max_length=36),
        ),
        migrations.AddField(
            model_name="consumergroup",
            name="allow_addresses",
            field=models.CharField(blank=True, max_length=2000),
        ),
        migrations.AddField(
            model_name="consumergroup",
            name="deny_addresses",
            field=models.CharField(blank=True, max_length=2000),
        ),
        migrations.AddField(
            model_name="consumergroup",
            name="max_active_members",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="consumergroup",
            name="rebalance_cause",
            field=models.CharField(blank=True, max_length=300),
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="stopped_queues",
            field=models.JSONField(blank=True, default=list),
        ),
        migrations.AddField(
            model_name="queueoffset",
            name="idle_since",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="queueoffset",
            name="held_by",
            field=metadata.models.fields.NameField(blank=True, default="", max_length=210),
            preserve_default=False,
        ),
        migrations.CreateModel(
            name="Rebalance",
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
                ("generation", models.BigIntegerField()),
                ("cause", models.CharField(max_length=300)),
                ("at", models.DateTimeField(db_index=True)),
                ("assignment", models.JSONField(default=dict)),
                (
                    "group",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rebalances",
                        to="metadata.consumergroup",
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
            },
        ),
        migrations.CreateModel(
            name="RebalanceMove",
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
                    "from_member",
                    metadata.models.fields.NameField(blank=True, max_length=210),
                ),
                ("to_member", metadata.models.fields.NameField(blank=True, max_length=210)),
                ("pause_ms", models.BigIntegerField(blank=True, null=True)),
                (
                    "queue",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="metadata.queue",
                    ),
                ),
                (
                    "rebalance",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="moves",
                        to="metadata.rebalance",
                    ),
                ),
            ],
            options={
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="BroadcastInstance",
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
                ("name", metadata.models.fields.NameField(max_length=210)),
                ("epoch", models.BigIntegerField(default=0)),
                ("last_seen", models.DateTimeField()),
                (
                    "group",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="instances",
                        to="metadata.consumergroup",
                    ),
                ),
            ],
            options={
                "ordering": ("group_id", "name"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("group", "name"), name="broadcast_group_name"
                    )
                ],
            },
        ),
        migrations.AddIndex(
            model_name="rebalance",
            index=models.Index(fields=["group", "id"], name="rebalance_group"),
        ),
    )
