"""Broker: one gunicorn master with its URL. BrokerProcess: one of its workers."""

from __future__ import annotations

from django.db import models

from metadata.models.fields import NamedModel, value_constraint


class Broker(NamedModel):
    """A row of the broker registry; its workers keep it fresh.

    `incarnation` is the life of the broker that has the name; `stopped_at`: that life said
    good-bye then.
    """

    class State(models.TextChoices):
        IN = "in"
        OUT = "out"

    url = models.CharField(max_length=500)
    state = models.CharField(max_length=3, choices=State.choices, default=State.IN)
    started_at = models.DateTimeField()
    last_seen = models.DateTimeField()
    stopped_at = models.DateTimeField(null=True, blank=True)
    version = models.CharField(max_length=50, blank=True)
    incarnation = models.CharField(max_length=36, blank=True)

    class Meta(NamedModel.Meta):
        constraints = (value_constraint("state", "in", "out", name="broker_state"),)


class BrokerProcess(NamedModel):
    """A worker process of a broker, and the newest metadata change that it has
    acknowledged.

    Who moves a node waits until no live worker can still write to its old address. `demand`
    is what it is asked to send where that is limited (send_rate_limit.py), as JSON.
    """

    broker = models.ForeignKey(Broker, on_delete=models.CASCADE, related_name="processes")
    acknowledged = models.BigIntegerField(default=0)
    last_seen = models.DateTimeField()
    demand = models.TextField(default="", blank=True)

    class Meta(NamedModel.Meta):
        verbose_name_plural = "broker processes"
