"""Members that are Java clients: their number, and what they were told last."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Columns that may be null or have a default of the database: an older release does not
    name them.
    """

    dependencies = (("metadata", "0029_share_groups"),)

    operations = (
        migrations.AddField(
            model_name="consumergroupconsumer",
            name="java_id",
            field=models.BigIntegerField(blank=True, db_index=True, null=True),
        ),
        migrations.AddField(
            model_name="consumergroupconsumer",
            name="java_version",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="consumergroupconsumer",
            name="java_told",
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="consumergroupconsumer",
            name="java_polled_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
    )
