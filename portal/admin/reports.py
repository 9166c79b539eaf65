"""Reports and their rows."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import Report, ReportRow
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(Report)
class ReportAdmin(ReadOnlyAdmin):
    list_display = ("id", "name", "engine", "made_at", "settings")
    list_filter = ("name", "engine")
    search_fields = ("name",)


@admin.register(ReportRow)
class ReportRowAdmin(ReadOnlyAdmin):
    list_display = ("report", "number", "values")
    search_fields = ("report__name",)
