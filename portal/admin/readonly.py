"""Base of all lists of the admin site: read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from django.utils.text import capfirst

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin  # Django's own class takes no type arguments

# Columns that no page shows: encrypted, hashed or pickled values, and credentials.
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
    """A list with search, and a page per row, without any changes.

    Changes go through the portal, which checks rights and writes audit rows.
    """

    # The count of all rows in the footer would scan large tables.
    show_full_result_count = False
    list_per_page = 50
    actions = None

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show the list under the name of its rows. Django would ask to select one."""
        title = capfirst(str(self.opts.verbose_name_plural))
        return super().changelist_view(request, {"title": title, **(extra_context or {})})

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return [field.name for field in self.opts.fields if field.name not in SECRET]

    def lookup_allowed(
        self, lookup: str, value: Any, request: HttpRequest | None = None
    ) -> bool:
        """Allow only the filters that the page offers."""
        # Other filters would reveal secret columns by the number of matching rows.
        offered = {name for name in self.list_filter if isinstance(name, str)}
        return lookup.partition("__")[0] in offered

    def has_add_permission(self, request: HttpRequest, *objects: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False
