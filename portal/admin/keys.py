"""API keys, without anything that could be used as one."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import ApiKey
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    """Names and rights."""

    list_display = ("name", "rights", "created_at")
    search_fields = ("name",)
