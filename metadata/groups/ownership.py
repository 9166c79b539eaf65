"""Owners of a group's queues: what a member may acquire, for lists, and for moving
positions by hand.

In a broadcasting group every instance owns every queue (broadcast_instances.py), so there is a row
for each of both.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from django.db.models import F

from metadata.actors import Actor
from metadata.db import access
from metadata.db.changes import record_change
from metadata.db.consumer_ids import ConsumerId, reader_instance
from metadata.db.rows import find_group, lock_group_by_id
from metadata.db.transactions import reachable, transactional
from metadata.errors import Code, Invalid, NotFound
from metadata.groups.subscription_rows import EPOCHS_EACH
from metadata.limits.bulkhead import bulkhead
from metadata.membership import broadcast_instances, rebalance
from metadata.membership.heartbeats import expired_error, replaced_error
from metadata.models import (
    BroadcastInstance,
    ConsumerGroup,
    ConsumerGroupConsumer,
    QueueOffset,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueOwner:
    """A queue that a group reads; `owner` is the member's name, None while the queue is
    free.

    `instance` and `instance_id` are those of the reader, None and 0 unless the group
    broadcasts.
    """

    group: str
    group_id: int
    topic: str
    queue: int
    number: int
    node_id: int
    owner: str | None
    epoch: int
    instance: str | None = None
    instance_id: int = 0

    @property
    def reader(self) -> str:
        return reader_instance(self.instance_id)


def list_queues(*, group: str, actor: Actor) -> list[QueueOwner]:
    """Every queue a group reads, by topic, number and instance. Needs any right on it;
    raises NotFound.
    """
    access.require_any_right(actor, group)
    with reachable():
        row = find_group(group)
        rows = QueueOffset.objects.filter(group=row).select_related(
            "queue__topic", "owner__process"
        )
        found = [
            _owner(row, one) for one in rows.order_by("queue__topic__name", "queue__number")
        ]
        if row.mode != ConsumerGroup.Mode.BROADCASTING:
            return found
        holders = dict(row.members.values_list("instance_id", "process__name"))
        known = broadcast_instances.list_instances(row.pk)
        return [
            replace(
                one,
                owner=holders.get(name),
                epoch=one.epoch + epoch,
                instance=name,
                instance_id=pk,
            )
            for one in found
            for pk, (name, epoch) in known.items()
        ]


def list_queues_of_topic(*, group: str, topic: str, actor: Actor) -> list[QueueOwner]:
    """The queues of a topic that a group reads, if its members share the offsets.

    Needs `consume` or `browse` on the topic. Raises NotFound(group_not_found),
    Invalid(source_group) where the group does not read the topic, or broadcasts.
    """
    access.require_any(actor, ("consume", "browse"), topic)
    with reachable():
        row = find_group(group)
        if row.mode == ConsumerGroup.Mode.BROADCASTING:
            why = f"group {group} is broadcasting: each of its instances has offsets of its own"
            raise Invalid.field("source_group", why)
        rows = QueueOffset.objects.filter(group=row).select_related(
            "queue__topic", "owner__process"
        )
        found = [_owner(row, one) for one in rows.filter(queue__topic__name=topic)]
    if not found:
        raise Invalid.field("source_group", f"group {group} does not subscribe to {topic}")
    return found


def _owner(group: ConsumerGroup, row: QueueOffset) -> QueueOwner:
    return QueueOwner(
        group=group.name,
        group_id=group.pk,
        topic=row.queue.topic.name,
        queue=row.queue_id,
        number=row.queue.number,
        node_id=row.queue.node_id,
        owner=row.owner.process.name if row.owner else None,
        epoch=row.epoch,
    )


@bulkhead.permit("acquire")
def check_owned(*, consumer: ConsumerId, queues: Sequence[int]) -> dict[int, int]:
    """Queue → epoch for those of `list_queues` that the member is to own now; others are left
    out.

    Raises Gone(expired | replaced), MetadataUnavailable.
    """
    with reachable():
        texts = ConsumerGroupConsumer.objects.filter(pk=consumer.member_id).values_list(
            "consumer_id", flat=True
        )
        text = texts.first()
        if text is None:
            raise expired_error()
        if text != consumer.text:
            raise replaced_error()
        if consumer.instance_id:
            return _read_by(consumer, queues)
        rows = QueueOffset.objects.filter(
            group=consumer.group_id,
            owner=consumer.member_id,
            owner__consumer_id=consumer.text,
            target=F("owner"),
            queue_id__in=sorted(set(queues)),
        )
        return dict(rows.values_list("queue_id", "epoch"))


def _read_by(consumer: ConsumerId, queues: Sequence[int]) -> dict[int, int]:
    """The same for an instance. A consumer that is being replaced gets nothing."""
    epoch = broadcast_instances.read_epochs([consumer.text]).get(consumer.text)
    if epoch is None:
        return {}
    reads = broadcast_instances.read_queues([consumer.group_id], set(queues))
    return {read.queue: read.base_epoch + epoch for read in reads}


@bulkhead.permit()
def adopt_node_epoch(*, group_id: int, queue: int, epoch: int, instance_id: int = 0) -> int:
    """Raise the queue's epoch above `epoch`, which its node was found at; the epoch that
    counts now.

    Metadata lost its tail, or a reset raised the node's epoch: the owner hears of the new
    one at its next heartbeat. The epoch of an instance counts for all its queues. Nothing
    changes if metadata is ahead already. Raises NotFound(subscription_not_found).
    """
    return _adopted(group_id=group_id, queue=queue, epoch=epoch, instance_id=instance_id)


@transactional
def raise_epochs(*, group_id: int, queues: Mapping[int, int], instance_id: int = 0) -> None:
    """Raise the epochs of queues, given with the epochs that their owner has: it takes up
    each one anew.

    For owners that stop and restart on their own, and must be told where they go on. The
    generation rises in any case, so that waiting pulls of the group return. Raises
    NotFound(group_not_found).
    """
    group = lock_group_by_id(group_id)
    rows = QueueOffset.objects.filter(group=group, queue__in=sorted(queues))
    # its epoch counts for all its queues, and is what theirs have above the row's
    if instance_id:
        held = {
            queues[queue] - base for queue, base in rows.values_list("queue_id", "epoch")
        }
        BroadcastInstance.objects.filter(pk=instance_id, epoch__in=held).update(
            epoch=F("epoch") + 1
        )
    for queue, epoch in sorted(queues.items()) if not instance_id else ():
        rows.filter(queue=queue, epoch=epoch, target=F("owner")).update(
            epoch=F("epoch") + 1
        )
    rebalance.raise_generation(group_id)
    record_change("group", group_id)


@transactional
def _adopted(*, group_id: int, queue: int, epoch: int, instance_id: int) -> int:
    group = lock_group_by_id(group_id)
    row = QueueOffset.objects.filter(group=group, queue=queue).first()
    instance = (
        BroadcastInstance.objects.filter(group=group, pk=instance_id).first()
        if instance_id
        else None
    )
    if row is None or (instance_id and instance is None):
        raise NotFound(
            "The group does not read this queue.", code=Code.SUBSCRIPTION_NOT_FOUND
        )
    known = row.epoch + (instance.epoch if instance else 0)
    if known > epoch:
        return known
    if instance is None:
        QueueOffset.objects.filter(pk=row.pk, epoch=row.epoch).update(epoch=epoch + 1)
    elif epoch + 1 - row.epoch < EPOCHS_EACH:
        # broadcast_instances.fence raises it without the group's lock: it must not fall to a voided
        # epoch again.
        above = epoch + 1 - row.epoch
        rows = BroadcastInstance.objects.filter(pk=instance.pk)
        if not rows.filter(epoch__lt=above).update(epoch=above):
            return row.epoch + int(rows.values_list("epoch", flat=True).get())
    else:  # it would reach into the epochs of another subscription
        log.error(
            "group %s queue %d: epoch %d is of another subscription",
            group.name,
            queue,
            epoch,
        )
        return known
    rebalance.raise_generation(group_id)
    record_change("group", group_id)
    return epoch + 1
