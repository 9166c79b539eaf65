"""Base of all pages of the admin: it shows, and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin  # Django's own class takes no type arguments

# Columns that no page shows: what is encrypted, hashed, pickled or opens a door.
SECRET = frozenset(
    {
        "password",
        "password_encrypted",
        "reader_password_encrypted",
        "digest",
        "consumer_id",
        "payload",
    }
)


class ReadOnlyAdmin(_ModelAdmin):
    """A list with search and a page per row, nothing to change: changes are verbs, which
    write audit rows.
    """

    # counting a large table for a footer is not worth its price
    show_full_result_count = False
    list_per_page = 50
    actions = None

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return [field.name for field in self.opts.fields if field.name not in SECRET]

    def lookup_allowed(
        self, lookup: str, value: Any, request: HttpRequest | None = None
    ) -> bool:
        """Only the filters that a page offers: any other would tell, by what it finds, what
        no page shows.
        """
        offered = {one for one in self.list_filter if isinstance(one, str)}
        return lookup.partition("__")[0] in offered

    def has_add_permission(self, request: HttpRequest, *objects: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False
