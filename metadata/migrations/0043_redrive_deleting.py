"""Redrives count what a broker deleted that ended before it counted."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """A column that begins without rows."""

    dependencies = (("metadata", "0042_header_filters"),)

    operations = (
        migrations.AddField(
            model_name="redrive",
            name="deleting",
            field=models.JSONField(db_default={}, default=dict),
        ),
    )
