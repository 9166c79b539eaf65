"""Messages that groups handled, beside those they pulled, of each minute and of each ten
seconds of it.
"""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Null stays where it was not counted, so that a chart shows no line there instead of
    zeros.
    """

    dependencies = (("metadata", "0025_keys_and_casual_groups"),)

    operations = (
        migrations.AddField(
            model_name="sample",
            name="handled",
            field=models.BigIntegerField(blank=True, null=True),
        ),
        *(
            migrations.AddField(
                model_name="sample",
                name=f"handled_{number}",
                field=models.IntegerField(blank=True, null=True),
            )
            for number in range(1, 7)
        ),
    )
