"""The figures of charts."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import CommitLook, Sample
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(Sample)
class SampleAdmin(ReadOnlyAdmin):
    """The latest steps first."""

    list_display = ("at", "step_s", "topic_ref", "group_ref", "messages", "bytes", "errors", "lag", "lag_ms")
    list_filter = ("step_s",)
    search_fields = ("=topic_ref", "=group_ref")
    ordering = ("-at", "-id")


@admin.register(CommitLook)
class CommitLookAdmin(ReadOnlyAdmin):
    """The latest looks first."""

    list_display = ("at", "topic_ref", "group_ref")
    search_fields = ("=topic_ref", "=group_ref")
    ordering = ("-id",)
