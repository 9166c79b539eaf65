"""Topics."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import Topic
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(Topic)
class TopicAdmin(ReadOnlyAdmin):
    """Topics with their settings; deleted ones stay until their tables are dropped."""

    list_display = ("name", "kind", "state", "keyed", "retention_days", "owners", "department", "created_at")
    list_filter = ("kind", "state")
    search_fields = ("name", "owners", "department", "remark")
