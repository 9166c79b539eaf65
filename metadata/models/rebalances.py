"""Rebalance and RebalanceMove: what was done to groups, why, and how long their queues stood still."""

from __future__ import annotations

from django.db import models

from metadata.models.fields import MAX_NAME, NameField
from metadata.models.groups import ConsumerGroup
from metadata.models.queues import Queue


class Rebalance(models.Model):
    """One rebalance of a group. `assignment` maps each member to the ids of the queues meant for it."""

    group = models.ForeignKey(ConsumerGroup, on_delete=models.CASCADE, related_name="rebalances")
    generation = models.BigIntegerField()
    cause = models.CharField(max_length=300)
    at = models.DateTimeField(db_index=True)
    assignment = models.JSONField(default=dict)

    class Meta:
        ordering = ("-id",)
        indexes = (models.Index(fields=("group", "id"), name="rebalance_group"),)

    def __str__(self) -> str:
        return f"rebalance {self.pk}"


class RebalanceMove(models.Model):
    """One queue that got another target; '' stands for nobody.

    `pause_ms` runs from when its last owner was told to give it up, left, or was last heard, until the new
    owner acquired it. It stays null when a later rebalance overtook the move.
    """

    rebalance = models.ForeignKey(Rebalance, on_delete=models.CASCADE, related_name="moves")
    queue = models.ForeignKey(Queue, on_delete=models.CASCADE, related_name="+")
    from_member = NameField(max_length=MAX_NAME, blank=True)
    to_member = NameField(max_length=MAX_NAME, blank=True)
    pause_ms = models.BigIntegerField(null=True, blank=True)

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return f"move {self.pk}"
