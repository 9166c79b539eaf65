"""Orders, and the messages that were handled."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order, which is committed with its message."""

    name = models.CharField(max_length=20, primary_key=True)

    def __str__(self) -> str:
        return self.name


class Handled(models.Model):
    """A message whose handler was committed. Nothing but the inbox keeps it unique."""

    name = models.CharField(max_length=20)

    def __str__(self) -> str:
        return self.name
