"""Alarms that open and close with patience, are acknowledged and mailed; what is counted
for them.
"""

from __future__ import annotations

from typing import Any

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import F

import metadata.models.fields


def begun(apps: Any, schema_editor: Any) -> None:
    """What lasts now began when it was first seen."""
    apps.get_model("metadata", "Alarm").objects.update(since_at=F("first_at"), times=1)


class Migration(migrations.Migration):
    """Spells of the alarms there are; the other tables begin empty."""

    dependencies = (("metadata", "0017_pipeline_runs"),)

    operations = (
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
                ("spell", models.BigIntegerField()),
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
            ],
            options={
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="DeadTally",
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
                "verbose_name_plural": "dead tallies",
                "ordering": ("-newest_at", "-id"),
            },
        ),
        migrations.RemoveConstraint(
            model_name="alarm",
            name="alarm_kind",
        ),
        migrations.AddField(
            model_name="alarm",
            name="acknowledged_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="alarm",
            name="acknowledged_by",
            field=metadata.models.fields.NameField(blank=True, max_length=210),
        ),
        migrations.AddField(
            model_name="alarm",
            name="since_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="alarm",
            name="times",
            field=models.BigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="alarm",
            name="told",
            field=models.BigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="alarm",
            name="told_end",
            field=models.BigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="alarm",
            name="turning_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="consumergroup",
            name="alarm_lag",
            field=models.PositiveBigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="consumergroup",
            name="alarm_lag_s",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AlterField(
            model_name="alarm",
            name="kind",
            field=models.CharField(
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
                    ("suspect", "Suspect"),
                    ("inconsistent", "Inconsistent"),
                ],
                max_length=20,
            ),
        ),
        migrations.AddIndex(
            model_name="alarm",
            index=models.Index(fields=["ended_at", "kind"], name="alarm_lasting"),
        ),
        migrations.AddConstraint(
            model_name="alarm",
            constraint=models.CheckConstraint(
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
                            "suspect",
                            "inconsistent",
                        ),
                    )
                ),
                name="alarm_kind",
            ),
        ),
        migrations.AddField(
            model_name="alarmmail",
            name="alarm",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="mails",
                to="metadata.alarm",
            ),
        ),
        migrations.AddIndex(
            model_name="alarmmail",
            index=models.Index(fields=["sent_at", "id"], name="alarm_mail_waiting"),
        ),
        migrations.AddIndex(
            model_name="alarmmail",
            index=models.Index(fields=["address", "sent_at"], name="alarm_mail_address"),
        ),
        migrations.AddConstraint(
            model_name="alarmmail",
            constraint=models.UniqueConstraint(
                fields=("alarm", "spell", "what", "address"), name="alarm_mail_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="alarmmail",
            constraint=models.CheckConstraint(
                condition=models.Q(("what__in", ("began", "ended"))), name="alarm_mail_what"
            ),
        ),
        migrations.RunPython(begun, migrations.RunPython.noop),
    )
