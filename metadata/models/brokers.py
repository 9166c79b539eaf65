"""Broker: a gunicorn master with its URL. BrokerProcess: a worker process of a broker."""

from __future__ import annotations

from django.db import models

from metadata.models.fields import NamedModel, value_constraint


class Broker(NamedModel):
    """A broker in the registry. Its workers keep the row fresh.

    `incarnation` identifies the life of the broker that has the name, from start to end.
    `stopped_at` is the time at which this life ended in an orderly way.
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
    """A worker process of a broker, and the last metadata change that it has acknowledged.

    A failover of a node waits for these acknowledgements, until no live worker can write to
    the old address any more. `demand` is the worker's demand for the send rate limit
    (send_rate_limit.py), as JSON.
    """

    broker = models.ForeignKey(Broker, on_delete=models.CASCADE, related_name="processes")
    acknowledged = models.BigIntegerField(default=0)
    last_seen = models.DateTimeField()
    demand = models.TextField(default="", blank=True)

    class Meta(NamedModel.Meta):
        verbose_name_plural = "broker processes"
