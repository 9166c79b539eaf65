"""Members of groups, what they own and how far they are; rebalances, and offsets moved by
hand.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from metadata.models.fields import MAX_NAME, NamedModel, NameField
from metadata.models.groups import ConsumerGroup
from metadata.models.topics import Queue
from metadata.models.users import ApiKey
from metadata.rules.membership.process_report import MAX_CHARS


class Consumer(NamedModel):
    """A client process, as it was when it registered. `incarnation` is a UUID made at its
    start.
    """

    name = NameField(max_length=MAX_NAME)
    incarnation = models.CharField(max_length=36)
    address = models.CharField(max_length=100, blank=True)
    sdk = models.CharField(max_length=100, blank=True)
    key = models.ForeignKey(
        ApiKey, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )


class ConsumerGroupConsumer(models.Model):
    """A membership: one identity in one group.

    The row stays when another incarnation takes the identity over: `process` and
    `consumer_id` change,
    so an id that does not match its row was replaced and an id without a row has expired.
    """

    group = models.ForeignKey(
        ConsumerGroup, on_delete=models.PROTECT, related_name="members"
    )
    process = models.OneToOneField(
        Consumer, on_delete=models.PROTECT, related_name="membership"
    )
    # instance_id if given, else the consumer's name
    identity = NameField(max_length=MAX_NAME)
    # '' unless the member is static
    instance_id = NameField(max_length=MAX_NAME, blank=True)
    consumer_id = NameField(max_length=100, unique=True)  # the signed text
    # the last of them; none may come back
    replaced_incarnations = models.JSONField(default=list, blank=True)
    generation = models.BigIntegerField(default=0)  # the one the member said it had applied
    joined_at = models.DateTimeField()
    # Of a Java client: the number it calls itself by, the version of what it was told last,
    # what that was
    # (metadata.membership.java_members), and when it asked; null and 0 for all others.
    java_id = models.BigIntegerField(null=True, blank=True, db_index=True)
    java_version = models.BigIntegerField(default=0, db_default=0)
    java_told = models.JSONField(null=True, blank=True)
    java_polled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("group_id", "identity")
        constraints = (
            models.UniqueConstraint(
                fields=("group", "identity"), name="member_group_identity"
            ),
        )

    def __str__(self) -> str:
        return self.identity


class Heartbeat(models.Model):
    """Time when a member was last heard, by the database's clock; one narrow row, no
    further index.

    `report` is what its process said of itself at `reported_at`
    (metadata.rules.membership.process_report).
    """

    membership = models.OneToOneField(
        ConsumerGroupConsumer,
        on_delete=models.PROTECT,
        primary_key=True,
        related_name="heartbeat",
    )
    last_seen = models.DateTimeField()
    report = models.CharField(max_length=MAX_CHARS, blank=True, default="", db_default="")
    reported_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"heartbeat {self.pk}"


class QueueOffset(models.Model):
    """One queue of one group: who owns it, who shall, and how often it changed hands.

    `owner` differs from `target` only during a hand-over, which was told to members with
    generation `target_generation`. `idle_since`: nobody has served the queue since, or its
    owner was told to give it up then; null once its owner acquired it. `committed` is a
    copy for lists; the node's reader row decides. In broadcasting groups nothing is handed
    over, so the rows say only which queues are read.
    """

    group = models.ForeignKey(
        ConsumerGroup, on_delete=models.PROTECT, related_name="offsets"
    )
    queue = models.ForeignKey(Queue, on_delete=models.PROTECT, related_name="offsets")
    owner = models.ForeignKey(
        ConsumerGroupConsumer,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="owned",
    )
    target = models.ForeignKey(
        ConsumerGroupConsumer,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="targeted",
    )
    epoch = models.BigIntegerField(default=0)
    target_generation = models.BigIntegerField(default=0)
    idle_since = models.DateTimeField(null=True, blank=True)
    # identity of the last that acquired it
    held_by = NameField(max_length=MAX_NAME, blank=True)
    committed = models.BigIntegerField(default=0)
    # Of a Java client that owns it (metadata.membership.java_pulls): when it pulled last,
    # null if that is not
    # watched, and the end of the messages that it was given.
    java_pulled_at = models.DateTimeField(null=True, blank=True)
    java_given = models.BigIntegerField(default=0, db_default=0)

    class Meta:
        ordering = ("group_id", "queue_id")
        constraints = (
            models.UniqueConstraint(fields=("group", "queue"), name="offset_group_queue"),
            models.CheckConstraint(
                condition=Q(epoch__gte=0) & Q(committed__gte=0), name="offset_not_negative"
            ),
        )

    def __str__(self) -> str:
        return f"group {self.group_id} queue {self.queue_id}"


class BroadcastInstance(models.Model):
    """A named reader of a broadcasting group: it reads every queue, at positions of its
    own.

    The positions are the reader rows on the nodes whose `instance` is this row's id. They
    outlive the membership, so that a process that comes back under the name goes on where
    it was.
    `epoch` counts the
    changes of owner; a queue's epoch is its subscription's base plus this.
    """

    group = models.ForeignKey(
        ConsumerGroup, on_delete=models.PROTECT, related_name="instances"
    )
    name = NameField(max_length=MAX_NAME)
    epoch = models.BigIntegerField(default=0)
    # as a member; kept up to date only when it comes and goes
    last_seen = models.DateTimeField()

    class Meta:
        ordering = ("group_id", "name")
        constraints = (
            models.UniqueConstraint(fields=("group", "name"), name="broadcast_group_name"),
        )

    def __str__(self) -> str:
        return self.name


class OffsetMove(models.Model):
    """One queue's move. Those that were asked for together have the same `reset`, a UUID.

    The row is written before the position moves; `done` once it has. `undoes`: the reset
    that this one undid.
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


class Rebalance(models.Model):
    """One rebalance of a group. `assignment` maps each member to the ids of the queues
    meant for it.
    """

    group = models.ForeignKey(
        ConsumerGroup, on_delete=models.CASCADE, related_name="rebalances"
    )
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

    `pause_ms` runs from when its last owner was told to give it up, left, or was last
    heard, until the new owner acquired it. It stays null when a later rebalance overtook
    the move.
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
