"""Queue: one partition of a topic, one table `message_<id>` on one node."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from metadata.models.nodes import DbNode
from metadata.models.topics import Topic


class Queue(models.Model):
    """A queue; its id is global and never given twice, as the table is named by it.

    A read-only queue that no slot of the topic's layout names is *draining*: it is retired once every group
    has read it, and its table is dropped some days later. `state_since`: when it got the state it has.

    `head_read` is the head as a job last read it, `head_seen` the highest that was still there a minute
    later, so that no crash can take it back: a node below it has lost messages.
    """

    class State(models.TextChoices):
        """Mirrors `queue_head.state` on the node, which decides."""

        CREATING = "creating"
        READ_WRITE = "read_write"
        READ_ONLY = "read_only"
        RETIRED = "retired"

    topic = models.ForeignKey(Topic, on_delete=models.PROTECT, related_name="queues")
    node = models.ForeignKey(DbNode, on_delete=models.PROTECT, related_name="queues")
    number = models.PositiveIntegerField()
    state = models.CharField(max_length=10, choices=State.choices, default=State.CREATING)
    state_since = models.DateTimeField()
    head_read = models.BigIntegerField(default=0)
    head_seen = models.BigIntegerField(default=0)

    class Meta:
        ordering = ("topic_id", "number")
        constraints = (
            models.UniqueConstraint(fields=("topic", "number"), name="queue_topic_number"),
            models.CheckConstraint(
                condition=Q(state__in=("creating", "read_write", "read_only", "retired")), name="queue_state"
            ),
        )

    def __str__(self) -> str:
        return f"queue {self.pk}"
