"""Fingerprints of the keys that brokers work with, and groups that a command made for a
look.
"""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """The next start of a server records its keys; groups that exist are no casual ones."""

    dependencies = (("metadata", "0022_demand_for_limits"),)

    operations = (
        migrations.AddField(
            model_name="consumergroup",
            name="casual",
            field=models.BooleanField(default=False),
        ),
        migrations.CreateModel(
            name="KeyFingerprint",
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
                    "purpose",
                    models.CharField(
                        choices=[("signing", "Signing"), ("encryption", "Encryption")],
                        max_length=10,
                    ),
                ),
                ("fingerprint", models.CharField(max_length=32)),
                ("noted_at", models.DateTimeField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("purpose", "fingerprint"), name="key_fingerprint_once"
                    )
                ],
            },
        ),
    )
