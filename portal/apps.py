"""The Django application `portal`."""

from __future__ import annotations

from django.apps import AppConfig
from django.contrib.admin import apps as admin


class PortalConfig(AppConfig):
    """Registers the application."""

    name = "portal"
    verbose_name = "CatMQ portal"


class ConsoleConfig(admin.AdminConfig):
    """Replaces Django's admin site by the read-only browser of the metadata."""

    default = False
    default_site = "portal.auth.site.Console"
