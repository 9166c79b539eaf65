"""All tables of metadata, and the change counter's row."""

from __future__ import annotations

import uuid

import django.db.models.deletion
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

import metadata.models.fields


def start_counter(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Makes the single row of the change counter; its incarnation names this metadata
    database.
    """
    counter = apps.get_model("metadata", "ChangeCounter")
    counter.objects.using(schema_editor.connection.alias).create(
        id=1, incarnation=str(uuid.uuid4()), n=0
    )


class Migration(migrations.Migration):
    initial = True

    dependencies = []  # noqa: RUF012

    operations = [  # noqa: RUF012
        migrations.CreateModel(
            name="ApiKey",
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
                ("name", metadata.models.fields.NameField(max_length=210, unique=True)),
                ("digest", models.CharField(max_length=64, unique=True)),
                ("rights", models.JSONField(default=dict)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="AuditLog",
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
                ("at", models.DateTimeField(db_index=True)),
                ("actor_kind", models.CharField(max_length=10)),
                ("actor_name", metadata.models.fields.NameField(max_length=210)),
                ("address", models.CharField(blank=True, max_length=100)),
                ("verb", models.CharField(max_length=30)),
                ("kind", models.CharField(max_length=20)),
                ("name", metadata.models.fields.NameField(db_index=True, max_length=420)),
                ("before", models.JSONField(null=True)),
                ("after", models.JSONField(null=True)),
            ],
            options={
                "ordering": ("-id",),
            },
        ),
        migrations.CreateModel(
            name="ConsumerGroupConsumer",
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
                ("identity", metadata.models.fields.NameField(max_length=210)),
                (
                    "instance_id",
                    metadata.models.fields.NameField(blank=True, max_length=210),
                ),
                (
                    "consumer_id",
                    metadata.models.fields.NameField(max_length=100, unique=True),
                ),
                ("replaced_incarnations", models.JSONField(blank=True, default=list)),
                ("generation", models.BigIntegerField(default=0)),
                ("joined_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("group_id", "identity"),
            },
        ),
        migrations.CreateModel(
            name="Lease",
            fields=[
                (
                    "name",
                    metadata.models.fields.NameField(
                        max_length=210, primary_key=True, serialize=False
                    ),
                ),
                ("holder", models.CharField(max_length=200)),
                ("term", models.BigIntegerField(default=1)),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="Broker",
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
                ("name", metadata.models.fields.NameField(max_length=210, unique=True)),
                ("url", models.CharField(max_length=500)),
                (
                    "state",
                    models.CharField(
                        choices=[("in", "In"), ("out", "Out")], default="in", max_length=3
                    ),
                ),
                ("started_at", models.DateTimeField()),
                ("last_seen", models.DateTimeField()),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ("in", "out"))),
                        name="broker_state",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ChangeCounter",
            fields=[
                ("id", models.PositiveSmallIntegerField(primary_key=True, serialize=False)),
                ("incarnation", models.CharField(max_length=36)),
                ("n", models.BigIntegerField(default=0)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("id", 1)), name="change_counter_single"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ChangeLog",
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
                ("n", models.BigIntegerField()),
                ("kind", models.CharField(max_length=20)),
                ("row", models.BigIntegerField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("n", "kind", "row"), name="change_log_n"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Consumer",
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
                ("incarnation", models.CharField(max_length=36)),
                ("address", models.CharField(blank=True, max_length=100)),
                ("sdk", models.CharField(blank=True, max_length=100)),
                (
                    "key",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="metadata.apikey",
                    ),
                ),
            ],
            options={
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="ConsumerGroup",
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
                ("name", metadata.models.fields.NameField(max_length=210, unique=True)),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("clustering", "Clustering"),
                            ("broadcasting", "Broadcasting"),
                        ],
                        default="clustering",
                        max_length=12,
                    ),
                ),
                ("stopped", models.BooleanField(default=False)),
                ("session_timeout_ms", models.PositiveIntegerField(default=15000)),
                ("rebalance_wanted", models.BigIntegerField(default=0)),
                ("rebalance_done", models.BigIntegerField(default=0)),
                ("generation", models.BigIntegerField(default=0)),
                ("owners", models.CharField(blank=True, max_length=1000)),
                ("department", models.CharField(blank=True, max_length=200)),
                ("alarm_emails", models.CharField(blank=True, max_length=1000)),
                ("remark", models.TextField(blank=True)),
                ("created_at", models.DateTimeField()),
                ("deleted_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("mode__in", ("clustering", "broadcasting"))),
                        name="group_mode",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("session_timeout_ms__gte", 2000),
                            ("session_timeout_ms__lte", 300000),
                        ),
                        name="group_session_timeout",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("rebalance_done__lte", models.F("rebalance_wanted"))
                        ),
                        name="group_mark",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Heartbeat",
            fields=[
                (
                    "membership",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="heartbeat",
                        serialize=False,
                        to="metadata.consumergroupconsumer",
                    ),
                ),
                ("last_seen", models.DateTimeField()),
            ],
        ),
        migrations.AddField(
            model_name="consumergroupconsumer",
            name="group",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="members",
                to="metadata.consumergroup",
            ),
        ),
        migrations.AddField(
            model_name="consumergroupconsumer",
            name="process",
            field=models.OneToOneField(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="membership",
                to="metadata.consumer",
            ),
        ),
        migrations.CreateModel(
            name="DbNode",
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
                ("name", metadata.models.fields.NameField(max_length=210, unique=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[("normal", "Normal"), ("failure", "Failure")],
                        default="normal",
                        max_length=10,
                    ),
                ),
                (
                    "engine",
                    models.CharField(
                        choices=[("mysql", "Mysql"), ("sqlite", "Sqlite")], max_length=10
                    ),
                ),
                ("host", models.CharField(blank=True, max_length=255)),
                ("port", models.PositiveIntegerField(blank=True, null=True)),
                ("database", models.CharField(max_length=1000)),
                ("username", models.CharField(blank=True, max_length=200)),
                ("password_encrypted", models.TextField(blank=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("read_write", "Read Write"),
                            ("read_only", "Read Only"),
                            ("offline", "Offline"),
                        ],
                        default="read_write",
                        max_length=10,
                    ),
                ),
                ("special", models.BooleanField(default=False)),
                ("replica_host", models.CharField(blank=True, max_length=255)),
                ("replica_port", models.PositiveIntegerField(blank=True, null=True)),
                ("reader_username", models.CharField(blank=True, max_length=200)),
                ("reader_password_encrypted", models.TextField(blank=True)),
                ("epoch", models.BigIntegerField(default=1)),
                ("capacity_gb", models.PositiveIntegerField(blank=True, null=True)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ("normal", "failure"))),
                        name="db_node_kind",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("engine__in", ("mysql", "sqlite"))),
                        name="db_node_engine",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ("read_write", "read_only", "offline"))
                        ),
                        name="db_node_state",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("epoch__gte", 1)), name="db_node_epoch"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="JobRun",
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
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("running", "Running"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                        ],
                        default="running",
                        max_length=10,
                    ),
                ),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("count", models.BigIntegerField(blank=True, null=True)),
                ("detail", models.TextField(blank=True)),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [models.Index(fields=["name", "id"], name="job_run_name")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ("running", "done", "failed"))),
                        name="job_run_state",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Queue",
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
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("creating", "Creating"),
                            ("read_write", "Read Write"),
                            ("read_only", "Read Only"),
                            ("retired", "Retired"),
                        ],
                        default="creating",
                        max_length=10,
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="queues",
                        to="metadata.dbnode",
                    ),
                ),
            ],
            options={
                "ordering": ("topic_id", "number"),
            },
        ),
        migrations.CreateModel(
            name="QueueOffset",
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
                ("epoch", models.BigIntegerField(default=0)),
                ("target_generation", models.BigIntegerField(default=0)),
                ("committed", models.BigIntegerField(default=0)),
                (
                    "group",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="offsets",
                        to="metadata.consumergroup",
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="owned",
                        to="metadata.consumergroupconsumer",
                    ),
                ),
                (
                    "queue",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="offsets",
                        to="metadata.queue",
                    ),
                ),
                (
                    "target",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="targeted",
                        to="metadata.consumergroupconsumer",
                    ),
                ),
            ],
            options={
                "ordering": ("group_id", "queue_id"),
            },
        ),
        migrations.CreateModel(
            name="Topic",
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
                ("name", metadata.models.fields.NameField(max_length=210, unique=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[("normal", "Normal"), ("failure", "Failure")],
                        default="normal",
                        max_length=10,
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("creating", "Creating"),
                            ("ready", "Ready"),
                            ("deleted", "Deleted"),
                        ],
                        default="creating",
                        max_length=10,
                    ),
                ),
                (
                    "keyed",
                    models.CharField(
                        choices=[("strict", "Strict"), ("available", "Available")],
                        default="strict",
                        max_length=10,
                    ),
                ),
                (
                    "on_unknown",
                    models.CharField(
                        choices=[("fail", "Fail"), ("resend", "Resend")],
                        default="fail",
                        max_length=10,
                    ),
                ),
                ("retention_days", models.PositiveIntegerField(default=7)),
                ("keep_unread_days", models.PositiveIntegerField(default=30)),
                ("retention_bytes", models.PositiveBigIntegerField(blank=True, null=True)),
                ("layout", models.TextField(blank=True)),
                ("layout_version", models.BigIntegerField(default=0)),
                ("owners", models.CharField(blank=True, max_length=1000)),
                ("department", models.CharField(blank=True, max_length=200)),
                ("alarm_emails", models.CharField(blank=True, max_length=1000)),
                ("remark", models.TextField(blank=True)),
                ("created_at", models.DateTimeField()),
                ("deleted_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ("normal", "failure"))),
                        name="topic_kind",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ("creating", "ready", "deleted"))),
                        name="topic_state",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("keyed__in", ("strict", "available"))),
                        name="topic_keyed",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("on_unknown__in", ("fail", "resend"))),
                        name="topic_on_unknown",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("retention_days__gte", 1)),
                        name="topic_retention_days",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("state", "deleted"), _negated=True),
                            ("deleted_at__isnull", False),
                            _connector="OR",
                        ),
                        name="topic_deleted_at",
                    ),
                ],
            },
        ),
        migrations.AddField(
            model_name="queue",
            name="topic",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="queues",
                to="metadata.topic",
            ),
        ),
        migrations.CreateModel(
            name="ConsumerGroupTopic",
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
                    "state",
                    models.CharField(
                        choices=[
                            ("creating", "Creating"),
                            ("ready", "Ready"),
                            ("deleting", "Deleting"),
                        ],
                        default="creating",
                        max_length=10,
                    ),
                ),
                (
                    "start",
                    models.CharField(
                        choices=[("earliest", "Earliest"), ("latest", "Latest")],
                        max_length=10,
                    ),
                ),
                ("stopped", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField()),
                (
                    "group",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="subscriptions",
                        to="metadata.consumergroup",
                    ),
                ),
                (
                    "topic",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="subscriptions",
                        to="metadata.topic",
                    ),
                ),
            ],
            options={
                "ordering": ("group_id", "topic_id"),
            },
        ),
        migrations.AddConstraint(
            model_name="consumergroupconsumer",
            constraint=models.UniqueConstraint(
                fields=("group", "identity"), name="member_group_identity"
            ),
        ),
        migrations.AddConstraint(
            model_name="queueoffset",
            constraint=models.UniqueConstraint(
                fields=("group", "queue"), name="offset_group_queue"
            ),
        ),
        migrations.AddConstraint(
            model_name="queueoffset",
            constraint=models.CheckConstraint(
                condition=models.Q(("epoch__gte", 0), ("committed__gte", 0)),
                name="offset_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.UniqueConstraint(
                fields=("topic", "number"), name="queue_topic_number"
            ),
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("state__in", ("creating", "read_write", "read_only", "retired"))
                ),
                name="queue_state",
            ),
        ),
        migrations.AddConstraint(
            model_name="consumergrouptopic",
            constraint=models.UniqueConstraint(
                fields=("group", "topic"), name="subscription_group_topic"
            ),
        ),
        migrations.AddConstraint(
            model_name="consumergrouptopic",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ("creating", "ready", "deleting"))),
                name="subscription_state",
            ),
        ),
        migrations.AddConstraint(
            model_name="consumergrouptopic",
            constraint=models.CheckConstraint(
                condition=models.Q(("start__in", ("earliest", "latest"))),
                name="subscription_start",
            ),
        ),
        migrations.RunPython(start_counter, migrations.RunPython.noop),
    ]
