"""Former routings of topics whose queues changed, so that a repeated send goes where its
first try went.
"""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """A row for each routing that another one has replaced."""

    dependencies = (("metadata", "0018_alarms_and_mails"),)

    operations = (
        migrations.CreateModel(
            name="TopicRouting",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True,
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                ("layout", models.TextField()),
                (
                    "keyed",
                    models.CharField(
                        choices=[("strict", "Strict"), ("available", "Available")],
                        max_length=10,
                    ),
                ),
                ("queues", models.JSONField()),
                ("until_at", models.DateTimeField(db_index=True)),
                (
                    "topic",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="routings",
                        to="metadata.topic",
                    ),
                ),
            ],
            options={"ordering": ("until_at",)},
        ),
    )
