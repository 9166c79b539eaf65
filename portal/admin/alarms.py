"""Alarms: what was lost unread, nodes that run full, queues that are not cleaned or contradict themselves."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import Alarm, ClockMark
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(Alarm)
class AlarmAdmin(ReadOnlyAdmin):
    """The latest first; one that has not ended still lasts."""

    list_display = ("last_at", "kind", "name", "count", "detail", "first_at", "ended_at")
    list_filter = ("kind", ("ended_at", admin.EmptyFieldListFilter))
    search_fields = ("name", "detail")


@admin.register(ClockMark)
class ClockMarkAdmin(ReadOnlyAdmin):
    """What clocks showed when something was last cleaned."""

    list_display = ("host", "at", "elapsed_s", "boot")
    search_fields = ("host",)
