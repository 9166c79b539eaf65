"""The demand that each worker of a broker meets of limited topics and keys, so that workers
share by it.
"""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Nothing is asked for at first."""

    dependencies = (("metadata", "0020_topic_routings"),)

    operations = (
        migrations.AddField(
            model_name="brokerprocess",
            name="demand",
            field=models.TextField(blank=True, default=""),
        ),
    )
