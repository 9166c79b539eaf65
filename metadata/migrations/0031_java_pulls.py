"""Queues that Java clients own: when they were pulled last, and how far."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Columns that may be null or have a default of the database: an older release does not
    name them.
    """

    dependencies = (("metadata", "0030_java_members"),)

    operations = (
        migrations.AddField(
            model_name="queueoffset",
            name="java_given",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="queueoffset",
            name="java_pulled_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
    )
