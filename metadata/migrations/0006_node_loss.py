"""Nodes know whose data they hold and why they are barred; queues how far their heads were;
brokers their workers, each with the change it has followed."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

import metadata.models.fields


class Migration(migrations.Migration):
    """Nodes registered before have no identity; they get one when they are promoted or
    adopted.
    """

    dependencies = (("metadata", "0004_retention"),)

    operations = (
        migrations.AddField(
            model_name="dbnode",
            name="identity",
            field=models.CharField(blank=True, max_length=36, default=""),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="dbnode",
            name="barred",
            field=models.CharField(blank=True, max_length=500, default=""),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="queue", name="head_read", field=models.BigIntegerField(default=0)
        ),
        migrations.AddField(
            model_name="queue", name="head_seen", field=models.BigIntegerField(default=0)
        ),
        migrations.CreateModel(
            name="BrokerProcess",
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
                ("name", metadata.models.fields.NameField(max_length=210, unique=True)),
                ("acknowledged", models.BigIntegerField(default=0)),
                ("last_seen", models.DateTimeField()),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="processes",
                        to="metadata.broker",
                    ),
                ),
            ],
            options={"ordering": ("name",), "verbose_name_plural": "broker processes"},
        ),
    )
