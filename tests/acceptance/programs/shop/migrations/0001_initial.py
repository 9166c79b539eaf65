"""The first table."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Sales."""

    dependencies = ()

    operations = (
        migrations.CreateModel(
            name="Sale",
            fields=[
                ("id", models.CharField(max_length=36, primary_key=True, serialize=False)),
                ("customer", models.CharField(max_length=20)),
                ("place", models.PositiveIntegerField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("customer", "place"), name="sale_customer_place"
                    )
                ],
            },
        ),
    )
