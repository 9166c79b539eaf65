"""Members of groups, the queues that they own and their committed offsets; rebalances and
offset resets.
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
    """A client process at the time of its registration. `incarnation` is a UUID that it
    creates at its start.
    """

    name = NameField(max_length=MAX_NAME)
    incarnation = models.CharField(max_length=36)
    address = models.CharField(max_length=100, blank=True)
    sdk = models.CharField(max_length=100, blank=True)
    key = models.ForeignKey(
        ApiKey, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )


class ConsumerGroupConsumer(models.Model):
    """A member: an identity in a group.

    The row stays when another incarnation takes over the identity, and `process` and
    `consumer_id` change. So a consumer id that does not match its row was replaced, and an
    id without a row has expired.
    """

    group = models.ForeignKey(
        ConsumerGroup, on_delete=models.PROTECT, related_name="members"
    )
    process = models.OneToOneField(
        Consumer, on_delete=models.PROTECT, related_name="membership"
    )
    # the instance_id of a static member, else the consumer's name
    identity = NameField(max_length=MAX_NAME)
    # '' unless the member is static
    instance_id = NameField(max_length=MAX_NAME, blank=True)
    consumer_id = NameField(max_length=100, unique=True)  # the signed id
    # The last ones. They may not take the identity back.
    replaced_incarnations = models.JSONField(default=list, blank=True)
    generation = models.BigIntegerField(
        default=0
    )  # last generation that the member applied
    joined_at = models.DateTimeField()
    # Of a Java client (metadata.membership.java_members), null and 0 for all others: the
    # number that it uses for itself, version and content of the last assignment that it
    # got, and the time of its last poll.
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
    """Time of a member's last heartbeat, by the database's clock. A table of its own with
    narrow rows and no further index, because it is written all the time.

    `report` is what the process reported about itself at `reported_at`
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
    """A queue of a group: its owner, its target owner, and the epoch of the ownership.

    `owner` differs from `target` only during a hand-over, which members learn of with
    generation `target_generation`. `idle_since` is the time since which no member serves
    the queue or its owner was asked to release it, null once an owner has acquired it.
    `committed` is a copy for lists; the node's reader row decides. In broadcasting groups
    there are no owners, and the rows only show which queues are read.
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
    # identity of the last member that acquired it
    held_by = NameField(max_length=MAX_NAME, blank=True)
    committed = models.BigIntegerField(default=0)
    # If a Java client owns it (metadata.membership.java_pulls): the time of its last pull,
    # null if that is not watched, and the offset after the messages that it got.
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
    """A named reader of a broadcasting group. It reads every queue, with offsets of its own.

    The offsets are in the reader rows on the nodes whose `instance` is this row's id. They
    outlive the membership, so that a process that returns under the same name continues
    where it stopped. `epoch` counts the changes of the process; the epoch of a queue is the
    `epoch` of its QueueOffset plus this.
    """

    group = models.ForeignKey(
        ConsumerGroup, on_delete=models.PROTECT, related_name="instances"
    )
    name = NameField(max_length=MAX_NAME)
    epoch = models.BigIntegerField(default=0)
    # as a member, written only when it joins and leaves
    last_seen = models.DateTimeField()

    class Meta:
        ordering = ("group_id", "name")
        constraints = (
            models.UniqueConstraint(fields=("group", "name"), name="broadcast_group_name"),
        )

    def __str__(self) -> str:
        return self.name


class OffsetMove(models.Model):
    """A change of a group's offset in a queue by an offset reset. All moves of a reset have
    the same `reset`, a UUID.

    The row is written before the offset moves, and `done` is set afterwards. `undoes` is
    the reset that this reset undid.
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
    """A rebalance of a group. `assignment` maps each member to the ids of its queues."""

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
    """A queue that got another target in a rebalance. '' stands for no member.

    `pause_ms` is the time from when its last owner was asked to release it, left, or sent
    its last heartbeat, until the new owner acquired it. It stays null if a later rebalance
    changed the target before.
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
