"""Records that the system writes about itself: audit, job runs, leases, changes, figures."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import (
    AuditLog,
    ChangeCounter,
    ChangeLog,
    CommitLook,
    JobRun,
    Lease,
    OffsetMove,
    Redrive,
    Sample,
)
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(AuditLog)
class AuditLogAdmin(ReadOnlyAdmin):
    """Audit log: who changed what, before and after."""

    list_display = ("at", "actor_kind", "actor_name", "verb", "kind", "name")
    list_filter = ("kind", "verb", "actor_kind")
    search_fields = ("name", "actor_name")


@admin.register(JobRun)
class JobRunAdmin(ReadOnlyAdmin):
    list_display = ("name", "state", "started_at", "finished_at", "count")
    list_filter = ("name", "state")
    search_fields = ("name", "detail")


@admin.register(OffsetMove)
class OffsetMoveAdmin(ReadOnlyAdmin):
    """Positions that were moved by hand."""

    list_display = ("at", "group", "queue", "instance", "from_offset", "to_offset", "actor_name", "reset")
    search_fields = ("group__name", "reset", "actor_name")


@admin.register(Lease)
class LeaseAdmin(ReadOnlyAdmin):
    """Current holder of each sweep: the process that does it."""

    list_display = ("name", "holder", "term", "expires_at")
    search_fields = ("name", "holder")


@admin.register(ChangeCounter)
class ChangeCounterAdmin(ReadOnlyAdmin):
    """The number of the last change."""

    list_display = ("n", "incarnation")
    search_fields = ("incarnation",)


@admin.register(ChangeLog)
class ChangeLogAdmin(ReadOnlyAdmin):
    """Rows that each change touched."""

    list_display = ("n", "kind", "row")
    list_filter = ("kind",)
    search_fields = ("=n", "=row")


@admin.register(Redrive)
class RedriveAdmin(ReadOnlyAdmin):
    """Dead messages on their way back, in the background."""

    list_display = ("id", "group", "topic", "to", "state", "total", "redriven", "created_at")
    list_filter = ("state",)
    search_fields = ("topic", "asked_by")


@admin.register(Sample)
class SampleAdmin(ReadOnlyAdmin):
    list_display = ("at", "step_s", "topic_ref", "group_ref", "messages", "bytes", "errors", "lag", "lag_ms")
    list_filter = ("step_s",)
    search_fields = ("=topic_ref", "=group_ref")
    ordering = ("-at", "-id")


@admin.register(CommitLook)
class CommitLookAdmin(ReadOnlyAdmin):
    list_display = ("at", "topic_ref", "group_ref")
    search_fields = ("=topic_ref", "=group_ref")
    ordering = ("-id",)
