"""Consumers: who is there, when they were heard, and which queue is whose."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import BroadcastInstance, Consumer, ConsumerGroupConsumer, Heartbeat, QueueOffset
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(Consumer)
class ConsumerAdmin(ReadOnlyAdmin):
    """Client processes as they registered."""

    list_display = ("name", "address", "sdk", "key")
    list_select_related = ("key",)
    search_fields = ("name", "address", "sdk")


@admin.register(ConsumerGroupConsumer)
class ConsumerGroupConsumerAdmin(ReadOnlyAdmin):
    list_display = ("identity", "group", "generation", "joined_at")
    list_select_related = ("group",)
    search_fields = ("identity", "group__name")


@admin.register(BroadcastInstance)
class BroadcastInstanceAdmin(ReadOnlyAdmin):
    """Readers of broadcasting groups, each with positions of its own."""

    list_display = ("name", "group", "epoch", "last_seen")
    list_select_related = ("group",)
    search_fields = ("name", "group__name")


@admin.register(Heartbeat)
class HeartbeatAdmin(ReadOnlyAdmin):
    """Time each member was last heard, by the clock of the database."""

    list_display = ("membership", "last_seen")
    list_select_related = ("membership",)
    search_fields = ("membership__identity",)


@admin.register(QueueOffset)
class QueueOffsetAdmin(ReadOnlyAdmin):
    """Owner, target and epoch of each queue of each group; the position is a copy of what the node holds."""

    list_display = ("group", "queue", "owner", "target", "epoch", "target_generation", "idle_since")
    list_select_related = ("group", "queue", "owner", "target")
    search_fields = ("group__name", "=queue__id", "owner__identity")
