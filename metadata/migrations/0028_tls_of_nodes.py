"""TLS of connections to nodes; nodes that exist go on without it."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Columns with defaults of the database: an older release does not name them."""

    dependencies = (("metadata", "0027_words_of_the_field"),)

    operations = (
        migrations.AddField(
            model_name="dbnode",
            name="tls",
            field=models.CharField(
                db_default="off", default="off", max_length=6, verbose_name="TLS"
            ),
        ),
        migrations.AddField(
            model_name="dbnode",
            name="tls_ca",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                max_length=1000,
                verbose_name="CA file",
            ),
        ),
        migrations.AddConstraint(
            model_name="dbnode",
            constraint=models.CheckConstraint(
                condition=models.Q(("tls__in", ("off", "on", "verify"))), name="db_node_tls"
            ),
        ),
    )
