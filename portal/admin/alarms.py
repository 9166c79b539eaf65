"""Alarms: what was lost unread, nodes that run full, queues that cannot be cleaned."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import Alarm
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(Alarm)
class AlarmAdmin(ReadOnlyAdmin):
    """The latest first; one that has not ended still lasts."""

    list_display = ("last_at", "kind", "name", "count", "detail", "first_at", "ended_at")
    list_filter = ("kind", ("ended_at", admin.EmptyFieldListFilter))
    search_fields = ("name", "detail")
