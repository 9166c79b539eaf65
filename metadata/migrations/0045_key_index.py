"""Topics whose messages are found by key with an index."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Existing topics have no index; an older release that creates one does not name it."""

    dependencies = (("metadata", "0044_delayed_messages_of_nodes"),)

    operations = (
        migrations.AddField(
            model_name="topic",
            name="key_index",
            field=models.BooleanField(db_default=False, default=True),
        ),
    )
