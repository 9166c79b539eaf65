"""Queues: the partitions of topics."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import Queue
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(Queue)
class QueueAdmin(ReadOnlyAdmin):
    """A queue is the table message_<id> on its node."""

    list_display = ("id", "topic", "number", "node", "state")
    list_filter = ("state",)
    list_select_related = ("topic", "node")
    search_fields = ("=id", "topic__name", "node__name")
