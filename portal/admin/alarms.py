"""Alarms: what was lost unread, nodes that run full, queues that are not cleaned or contradict themselves."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import Alarm, AlarmMail, ClockMark, DeadLetterCount
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(Alarm)
class AlarmAdmin(ReadOnlyAdmin):
    """The latest first; one that has not ended still lasts."""

    list_display = ("last_at", "kind", "name", "count", "detail", "since_at", "ended_at", "acknowledged_by")
    list_filter = ("kind", ("ended_at", admin.EmptyFieldListFilter))
    search_fields = ("name", "detail")


@admin.register(ClockMark)
class ClockMarkAdmin(ReadOnlyAdmin):
    """Clock readings from when something was last cleaned."""

    list_display = ("host", "at", "elapsed_s", "boot")
    search_fields = ("host",)


@admin.register(AlarmMail)
class AlarmMailAdmin(ReadOnlyAdmin):
    """Alarm mails; one that waits has no time of sending."""

    list_display = ("made_at", "what", "alarm", "address", "sent_at", "tries", "error")
    list_filter = ("what", ("sent_at", admin.EmptyFieldListFilter))
    search_fields = ("address", "alarm__name")


@admin.register(DeadLetterCount)
class DeadLetterCountAdmin(ReadOnlyAdmin):
    """Groups with dead messages, as a job counted them."""

    list_display = ("group_ref", "messages", "last_hour", "newest_at", "counted_at", "seen_at", "seen_by")
    search_fields = ("=group_ref",)
