"""API keys, without anything that could be used as one."""

from __future__ import annotations

from django.contrib import admin

from metadata.models import ApiKey, KeyFingerprint
from portal.admin.readonly import ReadOnlyAdmin


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    """Names and rights."""

    list_display = ("name", "rights", "created_at")
    search_fields = ("name",)


@admin.register(KeyFingerprint)
class KeyFingerprintAdmin(ReadOnlyAdmin):
    """The keys that brokers work with, by their fingerprints."""

    list_display = ("purpose", "fingerprint", "noted_at")
    search_fields = ("fingerprint",)
