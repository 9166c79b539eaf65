"""History of rebalances: their causes, the moved queues, and how long queues were not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Count, Max, Model, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy

from metadata.models import Rebalance, RebalanceMove
from portal.admin.readonly import ReadOnlyAdmin

if TYPE_CHECKING:
    _TabularInline = admin.TabularInline[Any, Any]
else:
    _TabularInline = admin.TabularInline  # Django's own class takes no type arguments


class MoveInline(_TabularInline):
    model = RebalanceMove
    fields = readonly_fields = ("queue", "from_member", "to_member", "pause_ms")
    extra = 0
    can_delete = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[RebalanceMove]:
        """Join the queues, so that the list of moves needs a single query."""
        return super().get_queryset(request).select_related("queue")

    def has_add_permission(self, request: HttpRequest, *objects: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(Rebalance)
class RebalanceAdmin(ReadOnlyAdmin):
    """Rebalances with the number of moves and the longest pause."""

    list_display = ("at", "group", "generation", "cause", "moved", "longest_pause")
    list_select_related = ("group",)
    search_fields = ("group__name", "cause")
    inlines = (MoveInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Rebalance]:
        """Add the number of moves and the longest pause to the query of the rows."""
        rows: QuerySet[Rebalance] = super().get_queryset(request)
        return rows.annotate(moved=Count("moves"), longest=Max("moves__pause_ms"))

    @admin.display(description=gettext_lazy("Queues moved"))
    def moved(self, row: Any) -> int:
        return int(row.moved)

    @admin.display(description=gettext_lazy("Longest pause, ms"))
    def longest_pause(self, row: Any) -> int | None:
        return None if row.longest is None else int(row.longest)
