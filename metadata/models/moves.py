"""OffsetMove: a position that was moved by hand, kept so that the move can be undone."""

from __future__ import annotations

from django.db import models

from metadata.models.fields import MAX_NAME, NameField
from metadata.models.groups import ConsumerGroup
from metadata.models.queues import Queue


class OffsetMove(models.Model):
    """One queue's move. Those that were asked for together have the same `reset`, a UUID.

    The row is written before the position moves; `done` once it has. `undoes`: the reset that this one undid.
    """

    reset = models.CharField(max_length=36)
    group = models.ForeignKey(ConsumerGroup, on_delete=models.CASCADE, related_name="moves")
    queue = models.ForeignKey(Queue, on_delete=models.CASCADE, related_name="+")
    instance = NameField(max_length=MAX_NAME, blank=True)  # '' unless the group broadcasts
    from_offset = models.BigIntegerField()
    to_offset = models.BigIntegerField()
    done = models.BooleanField(default=False)
    undoes = models.CharField(max_length=36, blank=True)
    at = models.DateTimeField()
    actor_kind = models.CharField(max_length=10)
    actor_name = NameField(max_length=MAX_NAME)

    class Meta:
        ordering = ("-id",)
        indexes = (
            models.Index(fields=("group", "id"), name="offset_move_group"),
            models.Index(fields=("reset",), name="offset_move_reset"),
        )

    def __str__(self) -> str:
        return f"queue {self.queue_id}: {self.from_offset} to {self.to_offset}"
