"""Instances of broadcasting groups: named readers, each of which reads every queue at
positions of its own.

Nothing is handed over in such a group: a member owns every queue that the group's ready
subscriptions read, for the instance it names, and the rows of QueueOffset say only which
queues those are. A queue's epoch for an instance is the row's, where the subscription
began, plus the instance's own, which rises whenever the instance changes hands. Its
positions are the reader rows on the nodes that carry its id; they outlive its membership,
until it has not been seen for a week (messagestore.consume.broadcast_positions).

An instance that is to be forgotten gives up its name first, under the group's lock: whoever
comes under that name later is another instance and finds no half of its positions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from metadata.db.clock import before, database_now
from metadata.db.consumer_ids import reader_instance
from metadata.db.transactions import reachable, transactional
from metadata.errors import Conflict
from metadata.limits.bulkhead import bulkhead
from metadata.membership.rebalance import LIVE_QUEUES
from metadata.models import (
    BroadcastInstance,
    ConsumerGroup,
    ConsumerGroupConsumer,
    QueueOffset,
)

KEPT_DAYS = 7.0
MAX_INSTANCES = 1_000  # of a group: each has a reader row for every queue
MAX_DELETED = 200  # instances in one pass
# stands in the name of an instance that gave its own up; no name that users give has it
RELEASED_MARK = "~"


@dataclass(frozen=True, slots=True)
class BroadcastQueue:
    """A queue that a group reads; `base_epoch` is where its subscription's epochs begin."""

    group_id: int
    topic_id: int
    topic: str
    queue: int
    base_epoch: int
    group_stopped: bool


@dataclass(frozen=True, slots=True)
class ReleasedInstance:
    """An instance that has given up its name; `reader` is how reader rows call it."""

    id: int
    group_id: int
    reader: str


def claim_instance(*, group: ConsumerGroup, name: str, now: datetime) -> int:
    """The id of the instance, held by somebody new: its epoch rises. The caller holds the
    group's lock.

    Raises Conflict (in_use) if the group has as many instances as there may be.
    """
    known = BroadcastInstance.objects.filter(group=group)
    row = known.filter(name=name).first()
    if row is None:
        if known.count() >= MAX_INSTANCES:
            raise Conflict(
                f"Group {group.name} has {MAX_INSTANCES} instances, the maximum. Let each "
                "consumer keep "
                f"its instance_id. Instances not seen for {KEPT_DAYS:.0f} days are deleted."
            )
        row = known.create(group=group, name=name, last_seen=now)
    BroadcastInstance.objects.filter(pk=row.pk).update(epoch=F("epoch") + 1, last_seen=now)
    return row.pk


def record_last_seen(*, group: ConsumerGroup, seen: Mapping[str, datetime]) -> None:
    """Note when instances, by name, were last seen as members. The caller holds the group's
    lock.
    """
    for name, last_seen in sorted(seen.items()):
        BroadcastInstance.objects.filter(group=group, name=name).update(last_seen=last_seen)


@bulkhead.permit()
def raise_epoch(*, instance_id: int, epoch: int) -> None:
    """Raise the epoch of an instance that is at `epoch`, so that what was granted before is
    void.
    """
    with reachable():
        BroadcastInstance.objects.filter(pk=instance_id, epoch=epoch).update(
            epoch=F("epoch") + 1
        )


def read_epochs(texts: Collection[str]) -> dict[str, int]:
    """Consumer id → the epoch of the instance that it holds now.

    One statement, so a consumer that is being replaced is never told its successor's epoch.
    """
    rows = BroadcastInstance.objects.filter(
        group__members__consumer_id__in=sorted(texts), group__members__instance_id=F("name")
    )
    return dict(rows.order_by().values_list("group__members__consumer_id", "epoch"))


def read_queues(
    groups: Collection[int], queues: Collection[int] | None = None
) -> list[BroadcastQueue]:
    """List what some broadcasting groups read, or which of `queues` they do, by queue:
    topic and subscription ready, queue not retired."""
    rows = QueueOffset.objects.filter(
        group__in=sorted(groups),
        group__mode=ConsumerGroup.Mode.BROADCASTING,
        queue__state__in=LIVE_QUEUES,
        queue__topic__state="ready",
        queue__topic__subscriptions__group=F("group"),
        queue__topic__subscriptions__state="ready",
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
    """Instance id → (name, epoch) of those a broadcasting group knows."""
    rows = _named().filter(group=group_id).order_by("name")
    return {
        pk: (name, epoch) for pk, name, epoch in rows.values_list("pk", "name", "epoch")
    }


def reader_names(group_id: int) -> list[str]:
    """Names of a group's instances in reader rows: '' alone unless the group broadcasts."""
    return reader_names_by_group([group_id])[group_id]


def is_share_group(group_id: int) -> bool:
    """Return True if members of the group lease messages."""
    with reachable():
        return ConsumerGroup.objects.filter(
            pk=group_id, mode=ConsumerGroup.Mode.SHARE
        ).exists()


def reader_names_by_group(groups: Collection[int]) -> dict[int, list[str]]:
    """The same of some groups, in two statements. Raises ConsumerGroup.DoesNotExist for one
    that is gone.
    """
    with reachable():
        modes = dict(
            ConsumerGroup.objects.filter(pk__in=groups).order_by().values_list("pk", "mode")
        )
        if len(modes) < len(set(groups)):
            raise ConsumerGroup.DoesNotExist
        shared = ConsumerGroup.Mode.BROADCASTING
        named = _named().filter(group__in=groups, group__mode=shared).order_by("name")
        found = {
            group: [] if mode == shared else [reader_instance(0)]
            for group, mode in modes.items()
        }
        for group, instance in named.values_list("group_id", "pk"):
            found[group].append(reader_instance(instance))
    return found


def release_names(*, after_days: float = KEPT_DAYS) -> list[ReleasedInstance]:
    """Take the names of instances that are due to be forgotten; all that have none. One
    bounded pass.

    Due is one that nobody has held for so long, and every one of a deleted group.
    """
    with reachable():
        limit = before(database_now(), seconds=after_days * 86_400)
        due = _named().filter(_is_due(limit)).order_by("pk")
        candidates = list(due.values_list("pk", "group_id")[:MAX_DELETED])
    for instance_id, group_id in candidates:
        _part(instance_id=instance_id, group_id=group_id, limit=limit)
    with reachable():
        rows = BroadcastInstance.objects.filter(name__contains=RELEASED_MARK).order_by("pk")
        found = rows.values_list("pk", "group_id")[:MAX_DELETED]
        return [
            ReleasedInstance(pk, group_id, reader_instance(pk)) for pk, group_id in found
        ]


def _named() -> QuerySet[BroadcastInstance]:
    return BroadcastInstance.objects.exclude(name__contains=RELEASED_MARK)


def _is_due(limit: datetime) -> Q:
    held = ConsumerGroupConsumer.objects.filter(
        group=OuterRef("group"), instance_id=OuterRef("name")
    )
    return Q(group__deleted_at__isnull=False) | Q(~Exists(held), last_seen__lt=limit)


@transactional
def _part(*, instance_id: int, group_id: int, limit: datetime) -> None:
    """Take the instance's name if it is still due, judged under the group's lock."""
    ConsumerGroup.objects.select_for_update().filter(pk=group_id).first()
    row = _named().filter(_is_due(limit), pk=instance_id).first()
    if row is not None:
        row.name = f"{row.name}{RELEASED_MARK}{row.pk}"
        row.save(update_fields=("name",))


def delete_instance(instance_id: int) -> None:
    """Remove an instance that has given up its name, once its reader rows are gone."""
    with reachable():
        BroadcastInstance.objects.filter(
            pk=instance_id, name__contains=RELEASED_MARK
        ).delete()
