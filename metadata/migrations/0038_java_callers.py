"""Requests of Java clients."""

from __future__ import annotations

from django.db import migrations, models

from metadata.models.fields import NameField


class Migration(migrations.Migration):
    """A new table."""

    dependencies = (("metadata", "0037_start_at"),)

    operations = (
        migrations.CreateModel(
            name="JavaCaller",
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
                ("address", NameField(max_length=100)),
                ("sdk", NameField(blank=True, max_length=100)),
                ("last_seen", models.DateTimeField(db_index=True)),
                ("hour", models.BigIntegerField()),
                ("answered", models.BigIntegerField(default=0)),
                ("refused", models.BigIntegerField(default=0)),
                ("limited", models.BigIntegerField(default=0)),
                ("answered_before", models.BigIntegerField(default=0)),
                ("refused_before", models.BigIntegerField(default=0)),
                ("limited_before", models.BigIntegerField(default=0)),
            ],
            options={
                "ordering": ("-last_seen",),
                "constraints": (
                    models.UniqueConstraint(fields=("address", "sdk"), name="java_caller"),
                ),
            },
        ),
    )
