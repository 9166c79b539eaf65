"""The queue of django-q, without what its tasks carry."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django_q.models import OrmQ

from portal.admin import tables
from portal.admin.readonly import ReadOnlyAdmin

__all__ = ["tables"]  # unregisters django-q's own pages first


@admin.register(OrmQ)
class OrmQAdmin(ReadOnlyAdmin):
    list_display = ("id", "key", "lock")
    search_fields = ("key",)

    def get_fields(self, request: object, obj: object = None) -> Any:
        """Return the columns without the payload, which is pickled."""
        return ["key", "lock"]
