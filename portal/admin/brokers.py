"""Brokers that have registered."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import Broker, BrokerProcess
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(Broker)
class BrokerAdmin(ReadOnlyAdmin):
    list_display = ("name", "url", "state", "version", "started_at", "last_seen", "stopped_at")
    list_filter = ("state",)
    search_fields = ("name", "url")


@admin.register(BrokerProcess)
class BrokerProcessAdmin(ReadOnlyAdmin):
    """The workers of the brokers, and which change of metadata each has acknowledged."""

    list_display = ("name", "broker", "acknowledged", "last_seen")
    list_filter = ("broker",)
    search_fields = ("name", "broker__name")
