"""Lists of addresses, the server of a list that a node is written to, and the alarm when it
moved.
"""

from __future__ import annotations

from django.db import migrations, models

KINDS = (
    "unread_dropped",
    "node_low",
    "node_full",
    "node_filling",
    "node_away",
    "node_moved",
    "not_cleaned",
    "lag",
    "no_consumer",
    "dead_growing",
    "job_failed",
    "corrupt",
    "inconsistent",
)


class Migration(migrations.Migration):
    """Wider columns, and one that begins empty: a node with a single address has no list."""

    dependencies = (("metadata", "0044_delayed_messages_of_nodes"),)

    operations = (
        migrations.AlterField(
            model_name="dbnode",
            name="host",
            field=models.CharField(blank=True, max_length=500),
        ),
        migrations.AlterField(
            model_name="dbnode",
            name="replica_host",
            field=models.CharField(blank=True, max_length=500),
        ),
        migrations.AddField(
            model_name="dbnode",
            name="writer",
            field=models.CharField(blank=True, db_default="", default="", max_length=300),
        ),
        migrations.RemoveConstraint(model_name="alarm", name="alarm_kind"),
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
                condition=models.Q(("kind__in", KINDS)), name="alarm_kind"
            ),
        ),
    )
