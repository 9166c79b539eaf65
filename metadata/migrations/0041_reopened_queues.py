"""The time at which a queue was opened again."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """A column that may be null."""

    dependencies = (("metadata", "0040_saved_filters"),)

    operations = (
        migrations.AddField(
            model_name="queue",
            name="reopened_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
    )
