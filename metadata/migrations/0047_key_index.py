"""Topics and queues whose messages are found by key with an index."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Existing queues have no index; an older release that creates one does not name it."""

    dependencies = (("metadata", "0046_copies_of_nodes"),)

    operations = (
        migrations.AddField(
            model_name="topic",
            name="key_index",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name="queue",
            name="key_index",
            field=models.CharField(
                choices=[("none", "None"), ("changing", "Changing"), ("ready", "Ready")],
                db_default="none",
                default="none",
                max_length=10,
            ),
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.CheckConstraint(
                condition=models.Q(key_index__in=("none", "changing", "ready")),
                name="queue_key_index",
            ),
        ),
    )
