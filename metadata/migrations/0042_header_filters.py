"""Header filters of subscriptions."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """A column that begins without a filter."""

    dependencies = (("metadata", "0041_reopened_queues"),)

    operations = (
        migrations.AddField(
            model_name="consumergrouptopic",
            name="headers",
            field=models.JSONField(blank=True, db_default={}, default=dict),
        ),
    )
