"""Filters of lists that people saved."""

from __future__ import annotations

from django.db import migrations, models

import metadata.models.fields


class Migration(migrations.Migration):
    """A table more."""

    dependencies = (("metadata", "0039_alarm_facts_queue_bytes"),)

    operations = (
        migrations.CreateModel(
            name="SavedFilter",
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
                ("user", metadata.models.fields.NameField(max_length=150)),
                ("page", models.CharField(max_length=30)),
                ("name", metadata.models.fields.NameField(max_length=60)),
                ("query", models.CharField(max_length=2000)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("user", "page", "name"), name="saved_filter_once"
                    )
                ]
            },
        ),
    )
