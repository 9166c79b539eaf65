"""Topics."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import Topic, TopicRouting
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(Topic)
class TopicAdmin(ReadOnlyAdmin):
    """Topics with their settings; deleted ones stay until their tables are dropped."""

    list_display = ("name", "kind", "state", "keyed", "retention_days", "owners", "department", "created_at")
    list_filter = ("kind", "state")
    search_fields = ("name", "owners", "department", "remark")


@admin.register(TopicRouting)
class TopicRoutingAdmin(ReadOnlyAdmin):
    """Routings of topics before their queues, or what becomes of their keys, changed."""

    list_display = ("topic", "until_at", "keyed", "queues")
    search_fields = ("topic__name",)
    list_select_related = ("topic",)
