"""The Django application `portal`."""

from __future__ import annotations

from django.apps import AppConfig


class PortalConfig(AppConfig):
    """Names the app; nothing happens at start."""

    name = "portal"
    verbose_name = "CatMQ portal"
