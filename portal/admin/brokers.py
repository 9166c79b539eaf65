"""Brokers that have registered."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import Broker
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(Broker)
class BrokerAdmin(ReadOnlyAdmin):
    """One row per gunicorn master."""

    list_display = ("name", "url", "state", "version", "started_at", "last_seen", "stopped_at")
    list_filter = ("state",)
    search_fields = ("name", "url")
