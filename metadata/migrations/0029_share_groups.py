"""Share groups: their mode, and the settings of their leases."""

from __future__ import annotations

from django.db import migrations, models

MODES = ("clustering", "broadcasting", "share")


class Migration(migrations.Migration):
    """Columns with defaults of the database: an older release does not name them."""

    dependencies = (("metadata", "0028_tls_of_nodes"),)

    operations = (
        migrations.RemoveConstraint(model_name="consumergroup", name="group_mode"),
        migrations.AlterField(
            model_name="consumergroup",
            name="mode",
            field=models.CharField(
                choices=[(mode, mode.capitalize()) for mode in MODES],
                default="clustering",
                max_length=12,
            ),
        ),
        migrations.AddConstraint(
            model_name="consumergroup",
            constraint=models.CheckConstraint(
                condition=models.Q(("mode__in", MODES)), name="group_mode"
            ),
        ),
        migrations.AddField(
            model_name="consumergroup",
            name="lease_ms",
            field=models.PositiveIntegerField(db_default=30000, default=30000),
        ),
        migrations.AddField(
            model_name="consumergroup",
            name="run_messages",
            field=models.PositiveIntegerField(db_default=10, default=10),
        ),
        migrations.AddField(
            model_name="consumergroup",
            name="max_deliveries",
            field=models.PositiveIntegerField(db_default=5, default=5),
        ),
    )
