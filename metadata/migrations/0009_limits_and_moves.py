"""Topics and keys may have limits on sending; moves of positions are kept, so that they can
be undone.
"""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

import metadata.models.fields


class Migration(migrations.Migration):
    """Without a limit, as before."""

    dependencies = (("metadata", "0008_failures"),)

    operations = (
        migrations.AddField(
            model_name="apikey",
            name="max_bytes_per_s",
            field=models.PositiveBigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="apikey",
            name="max_messages_per_s",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="topic",
            name="max_bytes_per_s",
            field=models.PositiveBigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="topic",
            name="max_messages_per_s",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.CreateModel(
            name="OffsetMove",
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
                ("reset", models.CharField(max_length=36)),
                ("instance", metadata.models.fields.NameField(blank=True, max_length=210)),
                ("from_offset", models.BigIntegerField()),
                ("to_offset", models.BigIntegerField()),
                ("done", models.BooleanField(default=False)),
                ("undoes", models.CharField(blank=True, max_length=36)),
                ("at", models.DateTimeField()),
                ("actor_kind", models.CharField(max_length=10)),
                ("actor_name", metadata.models.fields.NameField(max_length=210)),
                (
                    "group",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="moves",
                        to="metadata.consumergroup",
                    ),
                ),
                (
                    "queue",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="metadata.queue",
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["group", "id"], name="offset_move_group"),
                    models.Index(fields=["reset"], name="offset_move_reset"),
                ],
            },
        ),
    )
