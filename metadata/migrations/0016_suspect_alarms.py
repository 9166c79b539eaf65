"""Alarms of queues that contradict themselves, with the offset that is wrong."""

from __future__ import annotations

from django.db import migrations, models

KINDS = ("unread_dropped", "node_low", "node_full", "not_cleaned", "suspect")


class Migration(migrations.Migration):
    """One more kind of alarm, and where in a queue it is."""

    dependencies = (("metadata", "0015_live_series"),)

    operations = (
        migrations.RemoveConstraint(model_name="alarm", name="alarm_kind"),
        migrations.AddField(
            model_name="alarm",
            name="place",
            field=models.BigIntegerField(blank=True, null=True),
        ),
        migrations.AlterField(
            model_name="alarm",
            name="kind",
            field=models.CharField(
                choices=[(kind, kind.replace("_", " ").title()) for kind in KINDS],
                max_length=20,
            ),
        ),
        migrations.AddConstraint(
            model_name="alarm",
            constraint=models.CheckConstraint(
                condition=models.Q(kind__in=KINDS), name="alarm_kind"
            ),
        ),
    )
