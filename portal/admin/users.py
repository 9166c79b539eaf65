"""Users: accounts and what they may do. Django's own pages would change accounts past the audit log."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group

from metadata.models import ApiKey, KeyFingerprint, UserRights
from portal.admin.readonly import ReadOnlyAdmin

for model in (Group, get_user_model()):
    admin.site.unregister(model)


@admin.register(get_user_model())
class UserAdmin(ReadOnlyAdmin):
    """Accounts; the page *Users and roles* changes them."""

    list_display = ("username", "email", "is_superuser", "is_active", "last_login")
    search_fields = ("username", "email")


@admin.register(UserRights)
class UserRightsAdmin(ReadOnlyAdmin):
    """Rights of users who are no administrators."""

    list_display = ("name", "rights")
    search_fields = ("name",)


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    list_display = ("name", "rights", "created_at")
    search_fields = ("name",)


@admin.register(KeyFingerprint)
class KeyFingerprintAdmin(ReadOnlyAdmin):
    """The keys that brokers work with, by their fingerprints."""

    list_display = ("purpose", "fingerprint", "noted_at")
    search_fields = ("fingerprint",)
