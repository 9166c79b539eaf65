"""Topics to which sends are forbidden."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """A column with a default of the database: an older release does not name it."""

    dependencies = (("metadata", "0032_send_tokens"),)

    operations = (
        migrations.AddField(
            model_name="topic",
            name="read_only",
            field=models.BooleanField(db_default=False, default=False),
        ),
    )
