"""The address at which the relay is notified of commits."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar[list[Any]] = [("catmq_outbox", "0002_deliver_at")]

    operations: ClassVar[list[Any]] = [
        migrations.AddField(
            "OutboxRelay",
            "address",
            models.CharField(blank=True, db_default="", max_length=100),
        ),
    ]
