"""The alarm of metadata that is written on another server."""

from __future__ import annotations

from django.db import migrations, models

KINDS = (
    "unread_dropped",
    "node_low",
    "node_full",
    "node_filling",
    "node_away",
    "node_moved",
    "node_copies",
    "metadata_moved",
    "not_cleaned",
    "lag",
    "no_consumer",
    "dead_growing",
    "job_failed",
    "corrupt",
    "inconsistent",
)


class Migration(migrations.Migration):
    """One more kind of alarm."""

    dependencies = (("metadata", "0047_key_index"),)

    operations = (
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
