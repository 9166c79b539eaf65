"""All tables of metadata in one step, and the change counter's row.

It replaces the migrations 0001 to 0044, which stay for one release: a database that has some of
them goes on with the others, and has this one applied when it has all.
"""

from __future__ import annotations

import uuid

import django.db.models.deletion
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

import metadata.models.fields
import metadata.models.groups

REPLACED = (
    "0001_initial",
    "0002_groups_brokers_history",
    "0003_queue_state_since",
    "0004_retention",
    "0006_node_loss",
    "0007_delivery",
    "0008_failures",
    "0009_limits_and_moves",
    "0010_portal_and_series",
    "0011_spark_reports",
    "0012_commit_looks",
    "0014_node_sizes",
    "0015_live_series",
    "0016_suspect_alarms",
    "0017_pipeline_runs",
    "0018_alarms_and_mails",
    "0020_topic_routings",
    "0022_demand_for_limits",
    "0025_keys_and_casual_groups",
    "0026_handled",
    "0027_words_of_the_field",
    "0028_tls_of_nodes",
    "0029_share_groups",
    "0030_java_members",
    "0031_java_pulls",
    "0032_send_tokens",
    "0033_read_only_topics",
    "0034_process_reports",
    "0035_topic_producers",
    "0036_handling_traces",
    "0037_start_at",
    "0038_java_callers",
    "0039_alarm_facts_queue_bytes",
    "0040_saved_filters",
    "0041_reopened_queues",
    "0042_header_filters",
    "0043_redrive_deleting",
    "0044_delayed_messages_of_nodes",
)


def start_counter(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Create the single row of the change counter; its incarnation names this database."""
    counter = apps.get_model("metadata", "ChangeCounter")
    counter.objects.using(schema_editor.connection.alias).create(
        id=1, incarnation=str(uuid.uuid4()), n=0
    )


class Migration(migrations.Migration):
    initial = True
    replaces = tuple(("metadata", name) for name in REPLACED)
    dependencies = ()
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
                            ("node_filling", "Node Filling"),
                            ("node_away", "Node Away"),
                            ("not_cleaned", "Not Cleaned"),
                            ("lag", "Lag"),
                            ("no_consumer", "No Consumer"),
                            ("dead_growing", "Dead Growing"),
                            ("job_failed", "Job Failed"),
                            ("corrupt", "Corrupt"),
                            ("inconsistent", "Inconsistent"),
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
                ("place", models.BigIntegerField(blank=True, null=True)),
                ("acknowledged_at", models.DateTimeField(blank=True, null=True)),
                (
                    "acknowledged_by",
                    metadata.models.fields.NameField(blank=True, max_length=210),
                ),
                ("since_at", models.DateTimeField(blank=True, null=True)),
                ("times", models.BigIntegerField(default=0)),
                ("notified", models.BigIntegerField(default=0)),
                ("notified_end", models.BigIntegerField(default=0)),
                ("pending_since", models.DateTimeField(blank=True, null=True)),
                ("facts", models.JSONField(blank=True, null=True)),
            ],
            options={
                "ordering": ("-last_at", "-id"),
                "indexes": [
                    models.Index(fields=["ended_at", "kind"], name="alarm_lasting")
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("kind", "name"), name="alarm_kind_name"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "kind__in",
                                (
                                    "unread_dropped",
                                    "node_low",
                                    "node_full",
                                    "node_filling",
                                    "node_away",
                                    "not_cleaned",
                                    "lag",
                                    "no_consumer",
                                    "dead_growing",
                                    "job_failed",
                                    "corrupt",
                                    "inconsistent",
                                ),
                            )
                        ),
                        name="alarm_kind",
                    ),
                ],
            },
        ),
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
                ("max_bytes_per_s", models.PositiveBigIntegerField(blank=True, null=True)),
                ("max_messages_per_s", models.PositiveIntegerField(blank=True, null=True)),
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
                ("stopped_at", models.DateTimeField(blank=True, null=True)),
                ("version", models.CharField(blank=True, max_length=50)),
                ("incarnation", models.CharField(blank=True, max_length=36)),
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
        migrations.CreateModel(
            name="CommitLook",
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
                ("topic_ref", models.BigIntegerField()),
                ("group_ref", models.BigIntegerField()),
                ("at", models.DateTimeField(db_index=True)),
                ("positions", models.JSONField()),
            ],
            options={
                "ordering": ("id",),
                "indexes": [
                    models.Index(
                        fields=["topic_ref", "group_ref", "id"], name="commit_look_of_whom"
                    )
                ],
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
                            ("share", "Share"),
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
                ("description", models.TextField(blank=True)),
                ("created_at", models.DateTimeField()),
                ("deleted_at", models.DateTimeField(blank=True, null=True)),
                ("allow_addresses", models.CharField(blank=True, max_length=2000)),
                ("deny_addresses", models.CharField(blank=True, max_length=2000)),
                ("max_active_members", models.PositiveIntegerField(blank=True, null=True)),
                ("rebalance_cause", models.CharField(blank=True, max_length=300)),
                ("alarm_lag", models.PositiveBigIntegerField(blank=True, null=True)),
                ("alarm_lag_s", models.PositiveIntegerField(blank=True, null=True)),
                ("casual", models.BooleanField(default=False)),
                ("lease_ms", models.PositiveIntegerField(db_default=30000, default=30000)),
                ("run_messages", models.PositiveIntegerField(db_default=10, default=10)),
                ("max_deliveries", models.PositiveIntegerField(db_default=5, default=5)),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
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
                    models.CheckConstraint(
                        condition=models.Q(
                            ("mode__in", ("clustering", "broadcasting", "share"))
                        ),
                        name="group_mode",
                    ),
                ],
            },
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
                ("dedicated", models.BooleanField(default=False)),
                ("replica_host", models.CharField(blank=True, max_length=255)),
                ("replica_port", models.PositiveIntegerField(blank=True, null=True)),
                ("reader_username", models.CharField(blank=True, max_length=200)),
                ("reader_password_encrypted", models.TextField(blank=True)),
                ("epoch", models.BigIntegerField(default=1)),
                ("capacity_gb", models.PositiveIntegerField(blank=True, null=True)),
                ("created_at", models.DateTimeField()),
                (
                    "disk",
                    models.CharField(
                        choices=[("ok", "Ok"), ("low", "Low"), ("full", "Full")],
                        default="ok",
                        max_length=4,
                    ),
                ),
                ("identity", models.CharField(blank=True, max_length=36)),
                ("quarantined", models.CharField(blank=True, max_length=500)),
                (
                    "tls",
                    models.CharField(
                        db_default="off", default="off", max_length=6, verbose_name="TLS"
                    ),
                ),
                (
                    "tls_ca",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        max_length=1000,
                        verbose_name="CA file",
                    ),
                ),
                ("delayed_given", models.BigIntegerField(db_default=0, default=0)),
                ("delayed_waiting", models.BigIntegerField(db_default=0, default=0)),
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
                    models.CheckConstraint(
                        condition=models.Q(("disk__in", ("ok", "low", "full"))),
                        name="db_node_disk",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("tls__in", ("off", "on", "verify"))),
                        name="db_node_tls",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="DeadLetterCount",
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
                ("group_ref", models.BigIntegerField(unique=True)),
                ("messages", models.BigIntegerField(default=0)),
                ("last_hour", models.BigIntegerField(default=0)),
                ("newest_at", models.DateTimeField()),
                ("counted_at", models.DateTimeField()),
                ("seen_at", models.DateTimeField(blank=True, null=True)),
                ("seen_by", metadata.models.fields.NameField(blank=True, max_length=210)),
            ],
            options={
                "verbose_name_plural": "dead letter counts",
                "ordering": ("-newest_at", "-id"),
            },
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
                ("member", metadata.models.fields.NameField(max_length=210)),
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
                        fields=["queue_ref", "message_offset"], name="trace_message"
                    ),
                    models.Index(fields=["group_ref", "id"], name="trace_group"),
                ),
                "constraints": (
                    models.CheckConstraint(
                        condition=models.Q(
                            ("outcome__in", ("handled", "failed", "delivered"))
                        ),
                        name="trace_outcome",
                    ),
                ),
            },
        ),
        migrations.CreateModel(
            name="JavaCaller",
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
                ("address", metadata.models.fields.NameField(max_length=100)),
                ("sdk", metadata.models.fields.NameField(blank=True, max_length=100)),
                ("last_seen", models.DateTimeField(db_index=True)),
                ("hour", models.BigIntegerField()),
                ("answered", models.BigIntegerField(default=0)),
                ("refused", models.BigIntegerField(default=0)),
                ("limited", models.BigIntegerField(default=0)),
                ("answered_before", models.BigIntegerField(default=0)),
                ("refused_before", models.BigIntegerField(default=0)),
                ("limited_before", models.BigIntegerField(default=0)),
            ],
            options={
                "ordering": ("-last_seen",),
                "constraints": (
                    models.UniqueConstraint(fields=("address", "sdk"), name="java_caller"),
                ),
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
                            ("cancelled", "Cancelled"),
                        ],
                        default="running",
                        max_length=10,
                    ),
                ),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("count", models.BigIntegerField(blank=True, null=True)),
                ("detail", models.TextField(blank=True)),
                ("cancel_asked", models.BooleanField(default=False)),
                ("directory", models.CharField(blank=True, max_length=1000)),
                ("done", models.BigIntegerField(default=0)),
                ("stage", models.CharField(blank=True, max_length=200)),
                ("total", models.BigIntegerField(default=0)),
                ("asked_by", models.CharField(blank=True, max_length=210)),
                ("settings", models.JSONField(default=dict)),
                ("seen_at", models.DateTimeField(blank=True, null=True)),
                ("log", models.TextField(blank=True)),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [models.Index(fields=["name", "id"], name="job_run_name")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ("running", "done", "failed", "cancelled"))
                        ),
                        name="job_run_state",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="KeyFingerprint",
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
                    "purpose",
                    models.CharField(
                        choices=[("signing", "Signing"), ("encryption", "Encryption")],
                        max_length=10,
                    ),
                ),
                ("fingerprint", models.CharField(max_length=32)),
                ("noted_at", models.DateTimeField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("purpose", "fingerprint"), name="key_fingerprint_once"
                    )
                ],
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
                ("bucket_10s_1", models.IntegerField(db_default=0, default=0)),
                ("bucket_10s_2", models.IntegerField(db_default=0, default=0)),
                ("bucket_10s_3", models.IntegerField(db_default=0, default=0)),
                ("bucket_10s_4", models.IntegerField(db_default=0, default=0)),
                ("bucket_10s_5", models.IntegerField(db_default=0, default=0)),
                ("bucket_10s_6", models.IntegerField(db_default=0, default=0)),
                ("handled", models.BigIntegerField(blank=True, null=True)),
                ("handled_1", models.IntegerField(blank=True, null=True)),
                ("handled_2", models.IntegerField(blank=True, null=True)),
                ("handled_3", models.IntegerField(blank=True, null=True)),
                ("handled_4", models.IntegerField(blank=True, null=True)),
                ("handled_5", models.IntegerField(blank=True, null=True)),
                ("handled_6", models.IntegerField(blank=True, null=True)),
            ],
            options={
                "ordering": ("at", "id"),
                "indexes": [
                    models.Index(fields=["step_s", "at"], name="sample_step_at"),
                    models.Index(
                        fields=["step_s", "group_ref", "at"], name="sample_step_group"
                    ),
                ],
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
        migrations.CreateModel(
            name="SavedFilter",
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
                ("user", metadata.models.fields.NameField(max_length=150)),
                ("page", models.CharField(max_length=30)),
                ("name", metadata.models.fields.NameField(max_length=60)),
                ("query", models.CharField(max_length=2000)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("user", "page", "name"), name="saved_filter_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="TopicProducer",
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
                ("topic_ref", models.BigIntegerField()),
                ("name", metadata.models.fields.NameField(max_length=210)),
                ("address", metadata.models.fields.NameField(blank=True, max_length=100)),
                ("sdk", metadata.models.fields.NameField(blank=True, max_length=100)),
                ("first_seen", models.DateTimeField()),
                ("last_seen", models.DateTimeField(db_index=True)),
                ("hour", models.BigIntegerField()),
                ("messages", models.BigIntegerField(default=0)),
                ("messages_before", models.BigIntegerField(default=0)),
            ],
            options={
                "ordering": ("topic_ref", "-last_seen"),
                "constraints": (
                    models.UniqueConstraint(
                        fields=("topic_ref", "name", "address", "sdk"),
                        name="topic_producer",
                    ),
                ),
            },
        ),
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
        migrations.CreateModel(
            name="AlarmMail",
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
                ("occurrence", models.BigIntegerField()),
                (
                    "what",
                    models.CharField(
                        choices=[("began", "Began"), ("ended", "Ended")], max_length=5
                    ),
                ),
                ("address", models.CharField(max_length=254)),
                ("made_at", models.DateTimeField()),
                ("sent_at", models.DateTimeField(blank=True, null=True)),
                ("tries", models.PositiveIntegerField(default=0)),
                ("error", models.CharField(blank=True, max_length=500)),
                (
                    "alarm",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="mails",
                        to="metadata.alarm",
                    ),
                ),
            ],
            options={
                "ordering": ("id",),
                "indexes": [
                    models.Index(fields=["sent_at", "id"], name="alarm_mail_waiting"),
                    models.Index(fields=["address", "sent_at"], name="alarm_mail_address"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("what__in", ("began", "ended"))),
                        name="alarm_mail_what",
                    ),
                    models.UniqueConstraint(
                        fields=("alarm", "occurrence", "what", "address"),
                        name="alarm_mail_once",
                    ),
                ],
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
        migrations.CreateModel(
            name="BrokerProcess",
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
                ("acknowledged", models.BigIntegerField(default=0)),
                ("last_seen", models.DateTimeField()),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="processes",
                        to="metadata.broker",
                    ),
                ),
                ("demand", models.TextField(blank=True, default="")),
            ],
            options={
                "ordering": ("name",),
                "verbose_name_plural": "broker processes",
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
            name="NodeSize",
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
                    "node",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="sizes",
                        to="metadata.dbnode",
                    ),
                ),
                ("at", models.DateTimeField(db_index=True)),
                ("bytes", models.BigIntegerField()),
                ("tables", models.PositiveIntegerField()),
            ],
            options={
                "ordering": ("id",),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("node", "at"), name="node_size_once_an_hour"
                    )
                ],
            },
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
                "indexes": [models.Index(fields=["group", "id"], name="rebalance_group")],
            },
        ),
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
                ("deleting", models.JSONField(db_default={}, default=dict)),
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
                (
                    "job_run",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="metadata.jobrun",
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [models.Index(fields=["name", "id"], name="report_name")],
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
                ("description", models.TextField(blank=True)),
                ("created_at", models.DateTimeField()),
                ("deleted_at", models.DateTimeField(blank=True, null=True)),
                (
                    "failure_group",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="failure_topics",
                        to="metadata.consumergroup",
                    ),
                ),
                (
                    "failure_of",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="failure_topics",
                        to="metadata.topic",
                    ),
                ),
                ("max_bytes_per_s", models.PositiveBigIntegerField(blank=True, null=True)),
                ("max_messages_per_s", models.PositiveIntegerField(blank=True, null=True)),
                ("send_tokens", models.JSONField(blank=True, null=True)),
                ("read_only", models.BooleanField(db_default=False, default=False)),
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
                    models.UniqueConstraint(
                        fields=("failure_group", "failure_of"), name="topic_failure_pair"
                    ),
                ],
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
                (
                    "group",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="members",
                        to="metadata.consumergroup",
                    ),
                ),
                (
                    "process",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="membership",
                        to="metadata.consumer",
                    ),
                ),
                ("java_id", models.BigIntegerField(blank=True, db_index=True, null=True)),
                ("java_version", models.BigIntegerField(db_default=0, default=0)),
                ("java_told", models.JSONField(blank=True, null=True)),
                ("java_polled_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ("group_id", "identity"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("group", "identity"), name="member_group_identity"
                    )
                ],
            },
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
                ("stopped_queues", models.JSONField(blank=True, default=list)),
                ("active_at", models.DateTimeField(blank=True, null=True)),
                ("progress", models.BigIntegerField(default=0)),
                ("breaker_failures", models.PositiveIntegerField(blank=True, null=True)),
                ("breaker_pause_s", models.PositiveIntegerField(default=30)),
                ("dead_days", models.PositiveIntegerField(default=30)),
                ("delay_s", models.PositiveIntegerField(default=0)),
                ("fetch_max_wait_ms", models.PositiveIntegerField(blank=True, null=True)),
                ("handler_batch", models.PositiveIntegerField(blank=True, null=True)),
                ("handler_timeout_ms", models.PositiveIntegerField(blank=True, null=True)),
                ("max_poll_records", models.PositiveIntegerField(blank=True, null=True)),
                ("ordered", models.BooleanField(default=False)),
                ("retries", models.PositiveIntegerField(default=16)),
                (
                    "retry_delays_s",
                    models.JSONField(default=metadata.models.groups.default_delays),
                ),
                ("tags", models.CharField(blank=True, max_length=1000)),
                ("threads", models.PositiveIntegerField(blank=True, null=True)),
                ("lag", models.BigIntegerField(blank=True, null=True)),
                ("lag_at", models.DateTimeField(blank=True, null=True)),
                ("lag_ms", models.BigIntegerField(blank=True, null=True)),
                ("trace_percent", models.PositiveIntegerField(db_default=0, default=0)),
                ("start_at_ms", models.BigIntegerField(blank=True, null=True)),
                ("headers", models.JSONField(blank=True, db_default={}, default=dict)),
            ],
            options={
                "ordering": ("group_id", "topic_id"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("group", "topic"), name="subscription_group_topic"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ("creating", "ready", "deleting"))
                        ),
                        name="subscription_state",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("start__in", ("earliest", "latest"))),
                        name="subscription_start",
                    ),
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
                (
                    "topic",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="queues",
                        to="metadata.topic",
                    ),
                ),
                ("state_since", models.DateTimeField()),
                ("head_read", models.BigIntegerField(default=0)),
                ("head_seen", models.BigIntegerField(default=0)),
                ("bytes", models.BigIntegerField(blank=True, null=True)),
                ("reopened_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ("topic_id", "number"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "number"), name="queue_topic_number"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                ("creating", "read_write", "read_only", "retired"),
                            )
                        ),
                        name="queue_state",
                    ),
                ],
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
                (
                    "report",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rows",
                        to="metadata.report",
                    ),
                ),
            ],
            options={
                "ordering": ("report", "number"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("report", "number"), name="report_row_number"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="TopicRouting",
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
                ("layout", models.TextField()),
                (
                    "keyed",
                    models.CharField(
                        choices=[("strict", "Strict"), ("available", "Available")],
                        max_length=10,
                    ),
                ),
                ("queues", models.JSONField()),
                ("until_at", models.DateTimeField(db_index=True)),
                (
                    "topic",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="routings",
                        to="metadata.topic",
                    ),
                ),
            ],
            options={
                "ordering": ("until_at",),
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
                (
                    "report",
                    models.CharField(blank=True, db_default="", default="", max_length=500),
                ),
                ("reported_at", models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="OffsetMove",
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
                ("reset", models.CharField(max_length=36)),
                ("instance", metadata.models.fields.NameField(blank=True, max_length=210)),
                ("from_offset", models.BigIntegerField()),
                ("to_offset", models.BigIntegerField()),
                ("done", models.BooleanField(default=False)),
                ("undoes", models.CharField(blank=True, max_length=36)),
                ("at", models.DateTimeField()),
                ("actor_kind", models.CharField(max_length=10)),
                ("actor_name", metadata.models.fields.NameField(max_length=210)),
                (
                    "group",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="moves",
                        to="metadata.consumergroup",
                    ),
                ),
                (
                    "queue",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="metadata.queue",
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["group", "id"], name="offset_move_group"),
                    models.Index(fields=["reset"], name="offset_move_reset"),
                ],
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
                ("idle_since", models.DateTimeField(blank=True, null=True)),
                ("held_by", metadata.models.fields.NameField(blank=True, max_length=210)),
                ("java_given", models.BigIntegerField(db_default=0, default=0)),
                ("java_pulled_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ("group_id", "queue_id"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("group", "queue"), name="offset_group_queue"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("epoch__gte", 0), ("committed__gte", 0)),
                        name="offset_not_negative",
                    ),
                ],
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
        migrations.RunPython(start_counter, migrations.RunPython.noop),
    )
