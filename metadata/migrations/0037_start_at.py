"""The time from which a subscription reads."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """A column that may be null."""

    dependencies = (("metadata", "0036_handling_traces"),)

    operations = (
        migrations.AddField(
            model_name="consumergrouptopic",
            name="start_at_ms",
            field=models.BigIntegerField(blank=True, null=True),
        ),
    )
