"""The Django application of the outbox and the inbox."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register


class OutboxConfig(AppConfig):
    name = "catmq_client.contrib.django_outbox"
    label = "catmq_outbox"
    verbose_name = "CatMQ outbox"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # Models cannot be imported before the application registry is ready.
        from catmq_client.contrib.django_outbox import checks

        register(checks.check_databases)
