"""Orders, and how often each was begun."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order; its task is enqueued in its transaction."""

    id = models.CharField(max_length=36, primary_key=True)

    def __str__(self) -> str:
        return self.id


class Begin(models.Model):
    """An attempt of an order's task, as the task itself saw it."""

    order_id = models.CharField(max_length=36)
    attempt = models.PositiveSmallIntegerField()
    token = models.BigIntegerField()  # rises by one with each delivery of a message
    at = models.FloatField()
    process = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.order_id} {self.attempt}"
