"""Instances of broadcasting groups: named readers that each read every queue, at positions
of their own.

No queue changes owner in such a group. A member owns every queue that the ready
subscriptions of the group read, for the instance it names; the rows of QueueOffset say
only which queues these are. The epoch of a queue for an instance is the epoch of that
row, where the subscription began, plus the epoch of the instance, which rises whenever
another process takes the instance over.

The positions of an instance are the reader rows on the nodes that carry its id
(messagestore.consume.broadcast_positions). They outlive its membership, until it has
not been seen for a week.

Before an instance is deleted, it loses its name, under the lock of the group. A process
that comes back under that name gets a new instance, and never a half deleted set of
positions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from django.db.models import Exists, F, OuterRef, Q, QuerySet
from msgspec import Struct

from metadata.db.clock import before, database_now
from metadata.db.consumer_ids import reader_instance
from metadata.db.transactions import reachable, transactional
from metadata.errors import Conflict
from metadata.limits.bulkhead import bulkhead
from metadata.models import (
    BroadcastInstance,
    ConsumerGroup,
    ConsumerGroupConsumer,
    QueueOffset,
)
from metadata.rules.groups.states import GroupMode, SubscriptionState
from metadata.rules.topics.states import READABLE_STATES, TopicState

KEPT_DAYS = 7.0
MAX_INSTANCES = 1_000  # per group: each has a reader row in every queue
MAX_DELETED = 200  # instances in a pass
# Part of the name of an instance that lost its own; names from users cannot contain it.
RELEASED_MARK = "~"


class BroadcastQueue(Struct, frozen=True):
    """A queue that a group reads; `base_epoch` is the first epoch of its subscription."""

    group_id: int
    topic_id: int
    topic: str
    queue: int
    base_epoch: int
    group_stopped: bool


class ReleasedInstance(Struct, frozen=True):
    """An instance that lost its name; `reader` is the key of its reader rows."""

    id: int
    group_id: int
    reader: str


def claim_instance(*, group: ConsumerGroup, name: str, now: datetime) -> int:
    """Return the id of the instance with this name for a new holder, and raise its epoch.

    The instance is created if there is none. The caller holds the lock of the group.
    Raises Conflict(in_use) if the group has the maximum number of instances.
    """
    instances = BroadcastInstance.objects.filter(group=group)
    row = instances.filter(name=name).first()
    if row is None:
        if instances.count() >= MAX_INSTANCES:
            raise Conflict(
                f"Group {group.name} has {MAX_INSTANCES} instances, the maximum. Let each "
                "consumer keep "
                f"its instance_id. Instances not seen for {KEPT_DAYS:.0f} days are deleted."
            )
        row = instances.create(group=group, name=name, last_seen=now)
    BroadcastInstance.objects.filter(pk=row.pk).update(epoch=F("epoch") + 1, last_seen=now)
    return row.pk


def record_last_seen(
    *, group: ConsumerGroup, last_seen_by_name: Mapping[str, datetime]
) -> None:
    """Store when instances, by name, were last seen as members.

    The caller holds the lock of the group.
    """
    for name, last_seen in sorted(last_seen_by_name.items()):
        BroadcastInstance.objects.filter(group=group, name=name).update(last_seen=last_seen)


@bulkhead.permit()
def raise_epoch(*, instance_id: int, epoch: int) -> None:
    """Raise the epoch of an instance that is at `epoch`, so that former grants become
    void.
    """
    with reachable():
        BroadcastInstance.objects.filter(pk=instance_id, epoch=epoch).update(
            epoch=F("epoch") + 1
        )


def read_epochs(consumer_ids: Collection[str]) -> dict[str, int]:
    """Return the epoch of the instance that each consumer holds now, by consumer id."""
    # A single statement, so that a consumer that is being replaced never gets the epoch of its
    # successor.
    rows = BroadcastInstance.objects.filter(
        group__members__consumer_id__in=sorted(consumer_ids),
        group__members__instance_id=F("name"),
    )
    return dict(rows.order_by().values_list("group__members__consumer_id", "epoch"))


def read_queues(
    groups: Collection[int], queues: Collection[int] | None = None
) -> list[BroadcastQueue]:
    """Return the queues that broadcasting groups read, ordered by queue id; only `queues`
    if given.

    Topic and subscription must be ready, and the queue not retired.
    """
    rows = QueueOffset.objects.filter(
        group__in=sorted(groups),
        group__mode=GroupMode.BROADCASTING,
        queue__state__in=READABLE_STATES,
        queue__topic__state=TopicState.READY,
        queue__topic__subscriptions__group=F("group"),
        queue__topic__subscriptions__state=SubscriptionState.READY,
    )
    if queues is not None:
        rows = rows.filter(queue__in=sorted(queues))
    columns = (
        "group_id",
        "queue__topic_id",
        "queue__topic__name",
        "queue_id",
        "epoch",
        "group__stopped",
    )
    return [BroadcastQueue(*row) for row in rows.order_by("queue_id").values_list(*columns)]


def list_instances(group_id: int) -> dict[int, tuple[str, int]]:
    """Return (name, epoch) of each instance of a broadcasting group, by instance id."""
    rows = _active_instances().filter(group=group_id).order_by("name")
    return {
        pk: (name, epoch) for pk, name, epoch in rows.values_list("pk", "name", "epoch")
    }


def reader_names(group_id: int) -> list[str]:
    """Return the readers of a group as reader rows name them: only '' unless the group
    broadcasts.
    """
    return reader_names_by_group([group_id])[group_id]


def is_share_group(group_id: int) -> bool:
    with reachable():
        return ConsumerGroup.objects.filter(pk=group_id, mode=GroupMode.SHARE).exists()


def reader_names_by_group(groups: Collection[int]) -> dict[int, list[str]]:
    """Return the same for several groups, by group id, with two queries.

    Raises ConsumerGroup.DoesNotExist if any of them was deleted.
    """
    with reachable():
        modes = dict(
            ConsumerGroup.objects.filter(pk__in=groups).order_by().values_list("pk", "mode")
        )
        if len(modes) < len(set(groups)):
            raise ConsumerGroup.DoesNotExist
        broadcasting = GroupMode.BROADCASTING
        instances = (
            _active_instances()
            .filter(group__in=groups, group__mode=broadcasting)
            .order_by("name")
        )
        readers = {
            group: [] if mode == broadcasting else [reader_instance(0)]
            for group, mode in modes.items()
        }
        for group, instance in instances.values_list("group_id", "pk"):
            readers[group].append(reader_instance(instance))
    return readers


def release_names(*, after_days: float = KEPT_DAYS) -> list[ReleasedInstance]:
    """Take the names of instances that are due for deletion. Return all instances without
    a name.

    Due are those that no member has held for `after_days`, and all of deleted groups.
    A call handles at most MAX_DELETED instances.
    """
    with reachable():
        unseen_since = before(database_now(), seconds=after_days * 86_400)
        expired = _active_instances().filter(_is_due(unseen_since)).order_by("pk")
        candidates = list(expired.values_list("pk", "group_id")[:MAX_DELETED])
    # A transaction for each: it locks a group, and several groups at once could deadlock with a
    # rebalance.
    for instance_id, group_id in candidates:
        _release_name(instance_id=instance_id, group_id=group_id, unseen_since=unseen_since)
    with reachable():
        rows = BroadcastInstance.objects.filter(name__contains=RELEASED_MARK).order_by("pk")
        return [
            ReleasedInstance(pk, group_id, reader_instance(pk))
            for pk, group_id in rows.values_list("pk", "group_id")[:MAX_DELETED]
        ]


def _active_instances() -> QuerySet[BroadcastInstance]:
    return BroadcastInstance.objects.exclude(name__contains=RELEASED_MARK)


def _is_due(unseen_since: datetime) -> Q:
    held = ConsumerGroupConsumer.objects.filter(
        group=OuterRef("group"), instance_id=OuterRef("name")
    )
    return Q(group__deleted_at__isnull=False) | Q(~Exists(held), last_seen__lt=unseen_since)


@transactional
def _release_name(*, instance_id: int, group_id: int, unseen_since: datetime) -> None:
    """Take the instance's name if it is still due for deletion, checked under the group's
    lock.
    """
    # A process that registers under the name holds the same lock, so it either holds the
    # instance before the check or finds no instance of that name.
    ConsumerGroup.objects.select_for_update().filter(pk=group_id).first()
    row = _active_instances().filter(_is_due(unseen_since), pk=instance_id).first()
    if row is not None:
        row.name = f"{row.name}{RELEASED_MARK}{row.pk}"
        row.save(update_fields=("name",))


def delete_instance(instance_id: int) -> None:
    """Delete an instance that has lost its name, after its reader rows were deleted."""
    with reachable():
        BroadcastInstance.objects.filter(
            pk=instance_id, name__contains=RELEASED_MARK
        ).delete()
