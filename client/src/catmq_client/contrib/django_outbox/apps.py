"""The application as Django knows it."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register


class OutboxConfig(AppConfig):
    """The outbox: its tables begin with `catmq_outbox_`."""

    name = "catmq_client.contrib.django_outbox"
    label = "catmq_outbox"
    verbose_name = "CatMQ outbox"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from catmq_client.contrib.django_outbox import checks

        register(checks.check_databases)
