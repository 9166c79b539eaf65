"""The Django application `metadata`."""

from __future__ import annotations

from django.apps import AppConfig


class MetadataConfig(AppConfig):
    """Configuration of the application."""

    name = "metadata"
    label = "metadata"
    verbose_name = "CatMQ metadata"
    default_auto_field = "django.db.models.BigAutoField"
