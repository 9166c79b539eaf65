"""Reports of consumers' processes about themselves, beside their heartbeats."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Columns that may be null or have a default of the database: an older release does not
    name them.
    """

    dependencies = (("metadata", "0033_read_only_topics"),)

    operations = (
        migrations.AddField(
            model_name="heartbeat",
            name="report",
            field=models.CharField(blank=True, db_default="", default="", max_length=500),
        ),
        migrations.AddField(
            model_name="heartbeat",
            name="reported_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
    )
