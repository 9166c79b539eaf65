"""Queues know since when they have their state."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import migrations, models


class Migration(migrations.Migration):
    """Queues that are there count as unchanged for long."""

    dependencies = (("metadata", "0002_groups_brokers_history"),)

    operations = (
        migrations.AddField(
            model_name="queue",
            name="state_since",
            field=models.DateTimeField(default=datetime(2026, 1, 1, tzinfo=UTC)),
            preserve_default=False,
        ),
    )
