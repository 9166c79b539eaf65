"""The Django application `portal`."""

from __future__ import annotations

from django.apps import AppConfig
from django.contrib.admin import apps as admin


class PortalConfig(AppConfig):
    """Names the app; nothing happens at start."""

    name = "portal"
    verbose_name = "CatMQ portal"


class ConsoleConfig(admin.AdminConfig):
    default = False
    default_site = "portal.auth.site.Console"
