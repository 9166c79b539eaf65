"""Consumer groups and what they subscribe to."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import ConsumerGroup, ConsumerGroupTopic
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(ConsumerGroup)
class ConsumerGroupAdmin(ReadOnlyAdmin):
    """Groups with the counters of their assignment."""

    list_display = (
        "name",
        "mode",
        "stopped",
        "session_timeout_ms",
        "max_active_members",
        "generation",
        "owners",
        "created_at",
    )
    list_filter = ("mode", "stopped")
    search_fields = ("name", "owners", "department", "remark")


@admin.register(ConsumerGroupTopic)
class ConsumerGroupTopicAdmin(ReadOnlyAdmin):
    list_display = ("group", "topic", "state", "start", "stopped", "stopped_queues", "created_at")
    list_filter = ("state", "stopped")
    list_select_related = ("group", "topic")
    search_fields = ("group__name", "topic__name")
