"""Topics and queues."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import Queue, Topic, TopicRouting
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(Topic)
class TopicAdmin(ReadOnlyAdmin):
    """Topics with their settings; deleted ones stay until their tables are dropped."""

    list_display = ("name", "kind", "state", "keyed", "retention_days", "owners", "department", "created_at")
    list_filter = ("kind", "state")
    search_fields = ("name", "owners", "department", "description")


@admin.register(TopicRouting)
class TopicRoutingAdmin(ReadOnlyAdmin):
    """Routings of topics before their queues, or what becomes of their keys, changed."""

    list_display = ("topic", "until_at", "keyed", "queues")
    search_fields = ("topic__name",)
    list_select_related = ("topic",)


@admin.register(Queue)
class QueueAdmin(ReadOnlyAdmin):
    """A queue is the table message_<id> on its node."""

    list_display = ("id", "topic", "number", "node", "state")
    list_filter = ("state",)
    list_select_related = ("topic", "node")
    search_fields = ("=id", "topic__name", "node__name")
