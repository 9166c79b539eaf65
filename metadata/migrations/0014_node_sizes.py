"""What shows how nodes grow: their sizes, hour by hour."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Nothing is known of the time before."""

    dependencies = (("metadata", "0012_commit_looks"),)

    operations = (
        migrations.CreateModel(
            name="NodeSize",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True,
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="sizes",
                        to="metadata.dbnode",
                    ),
                ),
                ("at", models.DateTimeField(db_index=True)),
                ("bytes", models.BigIntegerField()),
                ("tables", models.PositiveIntegerField()),
            ],
            options={
                "ordering": ("id",),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("node", "at"), name="node_size_once_an_hour"
                    )
                ],
            },
        ),
    )
