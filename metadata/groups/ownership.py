"""Owners of the queues of a group: for lists, for acquiring, and for offset resets.

In a broadcasting group every instance owns every queue (broadcast_instances.py), so a
list has an entry for each pair.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from django.db.models import F
from msgspec import Struct, structs

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
from metadata.rules.groups.states import GroupMode
from metadata.rules.rights import Right

log = logging.getLogger(__name__)


class QueueOwner(Struct, frozen=True):
    """A queue that a group reads; `owner` is the name of a member, None if the queue is
    free.

    `instance` and `instance_id` are None and 0 unless the group broadcasts.
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
        """The reader of the queue as reader rows name it."""
        return reader_instance(self.instance_id)


def list_queues(*, group: str, actor: Actor) -> list[QueueOwner]:
    """Return every queue of a group, by topic, number and instance. Needs any right on the
    group.

    Raises NotFound.
    """
    access.require_any_right(actor, group)
    with reachable():
        group_row = find_group(group)
        rows = QueueOffset.objects.filter(group=group_row).select_related(
            "queue__topic", "owner__process"
        )
        owners = [
            _to_queue_owner(group_row, position)
            for position in rows.order_by("queue__topic__name", "queue__number")
        ]
        if group_row.mode != GroupMode.BROADCASTING:
            return owners
        # Instances outlive their members, so an instance may have no holder.
        holders = dict(group_row.members.values_list("instance_id", "process__name"))
        instances = broadcast_instances.list_instances(group_row.pk)
        # The epoch of a queue for an instance is the sum of both epochs.
        return [
            structs.replace(
                queue_owner,
                owner=holders.get(name),
                epoch=queue_owner.epoch + epoch,
                instance=name,
                instance_id=instance_id,
            )
            for queue_owner in owners
            for instance_id, (name, epoch) in instances.items()
        ]


def list_queues_of_topic(*, group: str, topic: str, actor: Actor) -> list[QueueOwner]:
    """Return the queues of a topic that a group reads.

    Needs `consume` or `browse` on the topic. Raises NotFound(group_not_found), and
    Invalid(source_group) if the group does not read the topic or is broadcasting.
    """
    access.require_any(actor, (Right.CONSUME, Right.BROWSE), topic)
    with reachable():
        group_row = find_group(group)
        if group_row.mode == GroupMode.BROADCASTING:
            reason = f"group {group} is broadcasting: each of its instances has offsets of its own"
            raise Invalid.field("source_group", reason)
        rows = QueueOffset.objects.filter(group=group_row).select_related(
            "queue__topic", "owner__process"
        )
        owners = [
            _to_queue_owner(group_row, position)
            for position in rows.filter(queue__topic__name=topic)
        ]
    if not owners:
        raise Invalid.field("source_group", f"group {group} does not subscribe to {topic}")
    return owners


def _to_queue_owner(group: ConsumerGroup, row: QueueOffset) -> QueueOwner:
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
    """Return the epoch of each queue that the member may acquire, by queue id.

    Queues that it shall not own are left out. Raises Gone(expired | replaced),
    MetadataUnavailable.
    """
    with reachable():
        current_ids = ConsumerGroupConsumer.objects.filter(
            pk=consumer.member_id
        ).values_list("consumer_id", flat=True)
        current_id = current_ids.first()
        if current_id is None:
            raise expired_error()
        if current_id != consumer.text:
            raise replaced_error()
        if consumer.instance_id:
            epoch = broadcast_instances.read_epochs([consumer.text]).get(consumer.text)
            # The consumer is being replaced at this moment.
            if epoch is None:
                return {}
            reads = broadcast_instances.read_queues([consumer.group_id], set(queues))
            return {read.queue: read.base_epoch + epoch for read in reads}
        # A queue that is leaving (target != owner) must not be acquired again.
        rows = QueueOffset.objects.filter(
            group=consumer.group_id,
            owner=consumer.member_id,
            owner__consumer_id=consumer.text,
            target=F("owner"),
            queue_id__in=sorted(set(queues)),
        )
        return dict(rows.values_list("queue_id", "epoch"))


@bulkhead.permit()
@transactional
def adopt_node_epoch(*, group_id: int, queue: int, epoch: int, instance_id: int = 0) -> int:
    """Raise the epoch of a queue above `epoch`, which its node has. Return the valid
    epoch.

    Needed after metadata lost its last transactions, or a reset raised the epoch on the
    node. The owner gets the new epoch at its next heartbeat. The epoch of an instance
    counts for all its queues. Nothing changes if the epoch in metadata is higher
    already. Raises NotFound(subscription_not_found).
    """
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
    current = row.epoch + (instance.epoch if instance else 0)
    if current > epoch:
        return current
    if instance is None:
        QueueOffset.objects.filter(pk=row.pk, epoch=row.epoch).update(epoch=epoch + 1)
    elif epoch + 1 - row.epoch < EPOCHS_EACH:
        # raise_epoch() works without the lock of the group. The condition below keeps
        # this UPDATE from lowering the epoch to a void value.
        instance_epoch = epoch + 1 - row.epoch
        rows = BroadcastInstance.objects.filter(pk=instance.pk)
        if not rows.filter(epoch__lt=instance_epoch).update(epoch=instance_epoch):
            return row.epoch + int(rows.values_list("epoch", flat=True).get())
    else:  # it would reach into the epochs of another subscription
        log.error(
            "group %s queue %d: epoch %d is of another subscription",
            group.name,
            queue,
            epoch,
        )
        return current
    rebalance.raise_generation(group_id)
    record_change("group", group_id)
    return epoch + 1


@transactional
def raise_epochs(*, group_id: int, queues: Mapping[int, int], instance_id: int = 0) -> None:
    """Raise the epochs of queues, so that their owner acquires each one again.

    `queues` maps queue ids to the epochs that the owner has. For owners that stop and
    restart on their own, and must learn the new position. The generation rises in any
    case, so that waiting pulls of the group return. Raises NotFound(group_not_found).
    """
    group = lock_group_by_id(group_id)
    rows = QueueOffset.objects.filter(group=group, queue__in=sorted(queues))
    # The epoch of an instance is the part of a queue's epoch above the one in its row.
    if instance_id:
        instance_epochs = {
            queues[queue] - base for queue, base in rows.values_list("queue_id", "epoch")
        }
        BroadcastInstance.objects.filter(pk=instance_id, epoch__in=instance_epochs).update(
            epoch=F("epoch") + 1
        )
    # Guarded by the epoch: a queue that changed its owner meanwhile has a new epoch
    # already.
    for queue, epoch in sorted(queues.items()) if not instance_id else ():
        rows.filter(queue=queue, epoch=epoch, target=F("owner")).update(
            epoch=F("epoch") + 1
        )
    rebalance.raise_generation(group_id)
    record_change("group", group_id)
