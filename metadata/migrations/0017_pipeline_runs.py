"""Runs of the data pipeline can be asked for by people, and show their log and that they
live.
"""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Runs of before were asked for by nobody."""

    dependencies = (("metadata", "0016_suspect_alarms"),)

    operations = (
        migrations.AddField(
            "jobrun", "asked_by", models.CharField(blank=True, max_length=210)
        ),
        migrations.AddField("jobrun", "settings", models.JSONField(default=dict)),
        migrations.AddField(
            "jobrun", "seen_at", models.DateTimeField(blank=True, null=True)
        ),
        migrations.AddField("jobrun", "log", models.TextField(blank=True)),
    )
