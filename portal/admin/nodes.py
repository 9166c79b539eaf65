"""Nodes: the databases that hold message tables; without their passwords."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import DbNode, NodeSize
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(DbNode)
class DbNodeAdmin(ReadOnlyAdmin):
    """Address of each node, and what may be done with it."""

    list_display = (
        "name",
        "kind",
        "engine",
        "host",
        "port",
        "database",
        "state",
        "disk",
        "special",
        "epoch",
        "barred",
    )
    list_filter = ("kind", "engine", "state", "disk")
    search_fields = ("name", "host", "database")


@admin.register(NodeSize)
class NodeSizeAdmin(ReadOnlyAdmin):
    list_display = ("at", "node", "bytes", "tables")
    list_filter = ("node",)
    search_fields = ("node__name",)
    ordering = ("-at", "-id")
