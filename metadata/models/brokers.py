"""Broker: a gunicorn master with its URL. BrokerProcess: a worker process of a broker."""

from __future__ import annotations

from django.db import models

from metadata.models.fields import NamedModel, enum_field, value_constraint
from metadata.rules.membership.brokers import BrokerState


class Broker(NamedModel):
    """A broker in the registry. Its workers update `last_seen` every few seconds.

    `incarnation` identifies one run of the broker, from its start to its stop. A restart under
    the same name has another. `stopped_at` is the time of an orderly stop of this run, null
    while it runs and after a crash.
    """

    url = models.CharField(max_length=500)
    state = enum_field(BrokerState, BrokerState.IN, max_length=3)
    started_at = models.DateTimeField()
    last_seen = models.DateTimeField()
    stopped_at = models.DateTimeField(null=True, blank=True)
    version = models.CharField(max_length=50, blank=True)
    incarnation = models.CharField(max_length=36, blank=True)

    class Meta(NamedModel.Meta):
        constraints = (value_constraint("state", BrokerState, name="broker_state"),)


class BrokerProcess(NamedModel):
    """A worker process of a broker, and the last metadata change that it has acknowledged.

    `acknowledged` is the number of the last change that the worker has loaded and follows. A
    failover of a node waits until every live worker has acknowledged the new address, so that
    none can write to the old one any more. `demand` is the messages and bytes per second that
    clients asked the worker to send, by limit, as JSON (send_rate_limit.py).
    """

    broker = models.ForeignKey(Broker, on_delete=models.CASCADE, related_name="processes")
    acknowledged = models.BigIntegerField(default=0)
    last_seen = models.DateTimeField()
    demand = models.TextField(default="", blank=True)

    class Meta(NamedModel.Meta):
        verbose_name_plural = "broker processes"
