"""Send tokens of topics, as digests."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """A column that may be null: an older release does not name it."""

    dependencies = (("metadata", "0031_java_pulls"),)

    operations = (
        migrations.AddField(
            model_name="topic",
            name="send_tokens",
            field=models.JSONField(blank=True, null=True),
        ),
    )
