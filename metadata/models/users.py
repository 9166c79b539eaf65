"""UserRights and SavedFilter: of a portal user. ApiKey: of a client. KeyFingerprint: of a
signing or encryption key of the brokers.
"""

from __future__ import annotations

from django.db import models

from metadata.models.fields import NamedModel, NameField


class UserRights(NamedModel):
    """Rights of a portal user who is no administrator. `rights` is {"manage": ["orders*"], …},
    name patterns of topics and groups by right, as in an API key.

    The owners of a topic or group may manage it without a row here.
    """

    name = NameField(max_length=150, unique=True)  # user name of the portal account
    rights = models.JSONField(default=dict)

    class Meta(NamedModel.Meta):
        verbose_name_plural = "user rights"


class SavedFilter(models.Model):
    """A search on a page of the portal that a user saved under a name. `query` is the query
    string of the URL.
    """

    user = NameField(max_length=150)  # user name of the portal account
    page = models.CharField(max_length=30)  # name of the page's route
    name = NameField(max_length=60)
    query = models.CharField(max_length=2000)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("user", "page", "name"), name="saved_filter_once"
            ),
        )

    def __str__(self) -> str:
        return f"{self.user} {self.page} {self.name}"


class ApiKey(NamedModel):
    """An API key, of which only the SHA-256 is stored (`digest`). `rights` is {"produce":
    ["orders*"], …}, name patterns of topics and groups by right.

    `max_messages_per_s` and `max_bytes_per_s` are its send rate limits, for all topics and
    brokers together; null = no limit.
    """

    digest = models.CharField(max_length=64, unique=True)
    rights = models.JSONField(default=dict)
    max_messages_per_s = models.PositiveIntegerField(null=True, blank=True)
    max_bytes_per_s = models.PositiveBigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField()


class KeyFingerprint(models.Model):
    """The fingerprint of a signing or encryption key, which shows whether a broker has the key
    that was used before. The key itself is in no database.
    """

    class Purpose(models.TextChoices):
        SIGNING = "signing"
        ENCRYPTION = "encryption"

    purpose = models.CharField(max_length=10, choices=Purpose.choices)
    fingerprint = models.CharField(max_length=32)
    noted_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("purpose", "fingerprint"), name="key_fingerprint_once"
            ),
        )

    def __str__(self) -> str:
        return f"{self.purpose} {self.fingerprint}"
