"""Orders and totals."""

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies: ClassVar[list[Any]] = []

    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="Order",
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
                ("customer", models.CharField(max_length=50)),
                ("total", models.DecimalField(decimal_places=2, max_digits=10)),
                ("receipt_sent_at", models.DateTimeField(null=True)),
                ("packed_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Totals",
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
                ("orders", models.PositiveIntegerField(default=0)),
                ("sum", models.DecimalField(decimal_places=2, default=0, max_digits=12)),
                ("made_at", models.DateTimeField(null=True)),
            ],
        ),
    ]
