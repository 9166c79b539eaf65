"""What people may do in the portal."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import UserRights
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(UserRights)
class UserRightsAdmin(ReadOnlyAdmin):
    """Rights of people who are no administrators."""

    list_display = ("name", "rights")
    search_fields = ("name",)
