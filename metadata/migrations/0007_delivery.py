"""Subscriptions say how messages come; failure topics whose failed messages they hold."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

import metadata.models.groups


class Migration(migrations.Migration):
    """Subscriptions made before get the defaults."""

    dependencies = (("metadata", "0006_node_loss"),)

    operations = (
        migrations.AddField(
            model_name="consumergrouptopic",
            name="breaker_failures",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="breaker_pause_s",
            field=models.PositiveIntegerField(default=30),
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="dead_days",
            field=models.PositiveIntegerField(default=30),
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="delay_s",
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="fetch_max_wait_ms",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="handler_batch",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="handler_timeout_ms",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="max_poll_records",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="ordered",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="retries",
            field=models.PositiveIntegerField(default=16),
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="retry_delays_s",
            field=models.JSONField(default=metadata.models.groups.default_delays),
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="tags",
            field=models.CharField(blank=True, max_length=1000),
        ),
        migrations.AddField(
            model_name="consumergrouptopic",
            name="threads",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="topic",
            name="failure_group",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="failure_topics",
                to="metadata.consumergroup",
            ),
        ),
        migrations.AddField(
            model_name="topic",
            name="failure_of",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="failure_topics",
                to="metadata.topic",
            ),
        ),
        migrations.AddConstraint(
            model_name="topic",
            constraint=models.UniqueConstraint(
                fields=("failure_group", "failure_of"), name="topic_failure_pair"
            ),
        ),
    )
