"""Producers of topics."""

from __future__ import annotations

from django.db import migrations, models

from metadata.models.fields import NameField


class Migration(migrations.Migration):
    """A new table."""

    dependencies = (("metadata", "0034_process_reports"),)

    operations = (
        migrations.CreateModel(
            name="TopicProducer",
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
                ("topic_ref", models.BigIntegerField()),
                ("name", NameField(max_length=210)),
                ("address", NameField(blank=True, max_length=100)),
                ("sdk", NameField(blank=True, max_length=100)),
                ("first_seen", models.DateTimeField()),
                ("last_seen", models.DateTimeField(db_index=True)),
                ("hour", models.BigIntegerField()),
                ("messages", models.BigIntegerField(default=0)),
                ("messages_before", models.BigIntegerField(default=0)),
            ],
            options={
                "ordering": ("topic_ref", "-last_seen"),
                "constraints": (
                    models.UniqueConstraint(
                        fields=("topic_ref", "name", "address", "sdk"),
                        name="topic_producer",
                    ),
                ),
            },
        ),
    )
