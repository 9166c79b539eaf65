"""Values that the detail of an alarm is put into words of, and sizes of queues."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Columns that may be null."""

    dependencies = (("metadata", "0038_java_callers"),)

    operations = (
        migrations.AddField(
            model_name="alarm",
            name="facts",
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="queue",
            name="bytes",
            field=models.BigIntegerField(blank=True, null=True),
        ),
    )
