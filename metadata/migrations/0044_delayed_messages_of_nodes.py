"""How many delayed messages each node had."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Columns that begin with 0: a job writes them within a minute."""

    dependencies = (("metadata", "0043_redrive_deleting"),)

    operations = (
        migrations.AddField(
            model_name="dbnode",
            name="delayed_given",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="dbnode",
            name="delayed_waiting",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
    )
