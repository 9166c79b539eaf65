"""UserRights: what a person may do in the portal beyond looking."""

from __future__ import annotations

from django.db import models

from metadata.models.fields import NameField


class UserRights(models.Model):
    """Rights of a portal user who is no administrator, as an API key has them: {"manage": ["orders*"], …}.

    Who is named among the owners of a topic or group may manage it without a row here.
    """

    name = NameField(max_length=150, unique=True)  # the account's user name
    rights = models.JSONField(default=dict)

    class Meta:
        ordering = ("name",)
        verbose_name_plural = "user rights"

    def __str__(self) -> str:
        return self.name
