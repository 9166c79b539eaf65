"""Topic: a name to which messages are sent. Queue: a partition of it, a table on a node.
TopicRouting: a former layout of a topic.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from metadata.models.fields import OwnedModel, enum_field, value_constraint
from metadata.models.nodes import DbNode
from metadata.rules.topics.states import (
    Keyed,
    KeyIndexState,
    OnUnknown,
    QueueState,
    TopicKind,
    TopicState,
)


class Topic(OwnedModel):
    """A topic. A deleted topic is renamed to `name~id`, so that its name is free while its
    tables still exist.
    """

    kind = enum_field(TopicKind, TopicKind.NORMAL)
    state = enum_field(TopicState, TopicState.CREATING)
    keyed = enum_field(Keyed, Keyed.STRICT)
    on_unknown = enum_field(OnUnknown, OnUnknown.FAIL)
    read_only = models.BooleanField(default=False, db_default=False)
    key_index = models.BooleanField(default=False, db_default=False)
    retention_days = models.PositiveIntegerField(default=7)
    # 0 = unread messages are not kept longer than others
    keep_unread_days = models.PositiveIntegerField(default=30)
    retention_bytes = models.PositiveBigIntegerField(null=True, blank=True)
    max_messages_per_s = models.PositiveIntegerField(null=True, blank=True)
    max_bytes_per_s = models.PositiveBigIntegerField(null=True, blank=True)
    layout = models.TextField(blank=True)  # JSON list of 1,024 queue ids; '' while creating
    layout_version = models.BigIntegerField(default=0)
    send_tokens = models.JSONField(null=True, blank=True)  # metadata.topics.send_tokens
    # Of a failure topic: the group and topic whose failed messages it holds. These decide;
    # its name is for display and old clients.
    failure_group = models.ForeignKey(
        "metadata.ConsumerGroup",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="failure_topics",
    )
    failure_of = models.ForeignKey(
        "self",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="failure_topics",
    )

    class Meta(OwnedModel.Meta):
        constraints = (
            value_constraint("kind", TopicKind, name="topic_kind"),
            value_constraint("state", TopicState, name="topic_state"),
            value_constraint("keyed", Keyed, name="topic_keyed"),
            value_constraint("on_unknown", OnUnknown, name="topic_on_unknown"),
            models.UniqueConstraint(
                fields=("failure_group", "failure_of"), name="topic_failure_pair"
            ),
            models.CheckConstraint(
                condition=Q(retention_days__gte=1), name="topic_retention_days"
            ),
            models.CheckConstraint(
                condition=~Q(state="deleted") | Q(deleted_at__isnull=False),
                name="topic_deleted_at",
            ),
        )


class TopicRouting(models.Model):
    """A former routing of a topic's messages that name no queue, valid until `until_at`.

    `queues` are the queues that a message without a key could go to. Kept as long as sends
    are remembered.
    """

    topic = models.ForeignKey(Topic, on_delete=models.CASCADE, related_name="routings")
    layout = models.TextField()  # as in Topic
    keyed = enum_field(Keyed)
    queues = models.JSONField()  # ids, in order of number
    until_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ("until_at",)

    def __str__(self) -> str:
        return f"{self.topic_id} until {self.until_at:%Y-%m-%d %H:%M:%S}"


class Queue(models.Model):
    """A queue. Its id is global and never used twice, because its table is named after it.

    A read-only queue without slots in the topic's layout is *draining*: it is retired once
    every group has read it, and its table is dropped some days later. `state_since` is the
    time of the last change of `state`, `reopened_at` the time when the queue was last
    opened after it had been closed; messages sent while it was closed may be in others.

    `head_read` is the log end offset as a job last read it. `head_seen` is the highest log
    end offset that was still there a minute later, so that no crash can undo it: a node
    with a lower one has lost messages. `bytes` is the size of its table as a job last
    measured it, null before.

    `key_index` says whether searches may use an index on the keys of its messages. It is
    written before and after each change of that index, so a crash leaves `changing`.
    """

    topic = models.ForeignKey(Topic, on_delete=models.PROTECT, related_name="queues")
    node = models.ForeignKey(DbNode, on_delete=models.PROTECT, related_name="queues")
    number = models.PositiveIntegerField()
    state = enum_field(QueueState, QueueState.CREATING)
    state_since = models.DateTimeField()
    reopened_at = models.DateTimeField(null=True, blank=True)
    head_read = models.BigIntegerField(default=0)
    head_seen = models.BigIntegerField(default=0)
    bytes = models.BigIntegerField(null=True, blank=True)
    # db_default: queues of an earlier release, and those that it creates, have no index.
    key_index = enum_field(KeyIndexState, KeyIndexState.NONE, db_default=KeyIndexState.NONE)

    class Meta:
        ordering = ("topic_id", "number")
        constraints = (
            models.UniqueConstraint(fields=("topic", "number"), name="queue_topic_number"),
            value_constraint("state", QueueState, name="queue_state"),
            value_constraint("key_index", KeyIndexState, name="queue_key_index"),
        )

    def __str__(self) -> str:
        return f"queue {self.pk}"
