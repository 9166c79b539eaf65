"""The time until which brokers keep a message."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar[list[Any]] = [("catmq_outbox", "0001_initial")]

    operations: ClassVar[list[Any]] = [
        migrations.AddField(
            "OutboxMessage", "deliver_at_ms", models.BigIntegerField(null=True)
        ),
    ]
