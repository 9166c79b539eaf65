"""What the report on latency needs: how far groups had committed, minute by minute."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Nothing is known of the time before."""

    dependencies = (("metadata", "0011_spark_reports"),)

    operations = (
        migrations.CreateModel(
            name="CommitLook",
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
                ("group_ref", models.BigIntegerField()),
                ("at", models.DateTimeField(db_index=True)),
                ("positions", models.JSONField()),
            ],
            options={
                "ordering": ("id",),
                "indexes": [
                    models.Index(
                        fields=["topic_ref", "group_ref", "id"], name="commit_look_of_whom"
                    )
                ],
            },
        ),
    )
