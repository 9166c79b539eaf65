"""Figures of each ten seconds of a minute, and of a group's minutes without a look at all
others.
"""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Charts of all topics together begin with it: their sums were made from single topics
    before.
    """

    dependencies = (("metadata", "0014_node_sizes"),)

    operations = (
        migrations.AddField(
            model_name="sample",
            name="sixth_1",
            field=models.IntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="sample",
            name="sixth_2",
            field=models.IntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="sample",
            name="sixth_3",
            field=models.IntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="sample",
            name="sixth_4",
            field=models.IntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="sample",
            name="sixth_5",
            field=models.IntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="sample",
            name="sixth_6",
            field=models.IntegerField(db_default=0, default=0),
        ),
        migrations.AddIndex(
            model_name="sample",
            index=models.Index(
                fields=["step_s", "group_ref", "at"], name="sample_step_group"
            ),
        ),
    )
