"""Queues that the nodes must hold by metadata, with their state, and who reads them.

Read as one consistent picture and never from the snapshot of a process, so that whoever compares it with
what a node holds knows which of the two was read first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import transaction

from metadata.actors import Actor
from metadata.cache.snapshot import ALIAS
from metadata.db import access
from metadata.db.consumer_ids import reader_instance
from metadata.db.transactions import reachable
from metadata.errors import Code, NotFound
from metadata.groups.subscription_rows import EPOCHS_EACH
from metadata.membership.instances import PARTED
from metadata.membership.rebalance import LIVE_QUEUES
from metadata.models import BroadcastInstance, ConsumerGroup, ConsumerGroupTopic, Queue, QueueOffset, Topic


@dataclass(frozen=True, slots=True)
class ExpectedReader:
    """A reader of a queue in a ready subscription; `instance` is as its row on the node names it.

    `epoch` is the highest that may be on the node, None where metadata has no position for it;
    `base_epoch` the lowest that counts. `required`: its row must be there. Instances of broadcasting
    groups get theirs when they first acquire.
    """

    group: str
    group_id: int
    instance: str
    instance_name: str
    subscription_id: int
    base_epoch: int
    epoch: int | None
    required: bool


@dataclass(frozen=True, slots=True)
class ExpectedQueue:
    """A queue of a ready topic that is not being created; `number` is its place in the topic."""

    topic: str
    queue: int
    number: int
    state: str
    node: str
    node_id: int
    node_state: str
    node_epoch: int
    readers: tuple[ExpectedReader, ...]


def queues(*, topics: Sequence[str] | None, actor: Actor, strict: bool = True) -> list[ExpectedQueue]:
    """The queues of some topics, or of all, by topic and number. Needs `manage` on each topic.

    Raises NotFound(topic_not_found) for a name that is no ready topic; leaves it out if not `strict`.
    """
    for name in topics or ():
        access.require(actor, "manage", name, what="topic")
    with reachable(), transaction.atomic(using=ALIAS):
        ready = Topic.objects.using(ALIAS).filter(state=Topic.State.READY)
        if topics is not None:
            ready = ready.filter(name__in=topics)
        names = {pk: name for pk, name in ready.values_list("pk", "name") if topics is None or name in topics}
        missing = sorted(set(topics or ()) - set(names.values()))
        if missing and strict:
            raise NotFound(f"Topic {missing[0]} does not exist.", code=Code.TOPIC_NOT_FOUND)
        mine = {pk: name for pk, name in names.items() if access.may(actor, "manage", name)}
        return _queues(mine)


def _queues(topics: dict[int, str]) -> list[ExpectedQueue]:
    rows = Queue.objects.using(ALIAS).filter(topic__in=topics).exclude(state=Queue.State.CREATING)
    readers = _Readers(topics)
    found = [
        ExpectedQueue(
            topic=topics[row.topic_id],
            queue=row.pk,
            number=row.number,
            state=row.state,
            node=row.node.name,
            node_id=row.node_id,
            node_state=row.node.state,
            node_epoch=row.node.epoch,
            readers=tuple(readers.of(row)) if row.state in LIVE_QUEUES else (),
        )
        for row in rows.select_related("node")
    ]
    return sorted(found, key=lambda one: (one.topic, one.number))


class _Readers:
    """The readers that the queues of some topics must have."""

    def __init__(self, topics: dict[int, str]) -> None:
        rows = ConsumerGroupTopic.objects.using(ALIAS).filter(topic__in=topics, state="ready")
        self._subscriptions = list(rows.select_related("group").order_by("group__name"))
        groups = {row.group_id for row in self._subscriptions}
        positions = QueueOffset.objects.using(ALIAS).filter(group__in=groups, queue__topic__in=topics)
        self._epochs = {
            (group, queue): epoch
            for group, queue, epoch in positions.order_by().values_list("group_id", "queue_id", "epoch")
        }
        self._instances: dict[int, list[BroadcastInstance]] = {}
        named = BroadcastInstance.objects.using(ALIAS).exclude(name__contains=PARTED)
        for one in named.filter(group__in=groups).order_by("name"):
            self._instances.setdefault(one.group_id, []).append(one)

    def of(self, queue: Queue) -> list[ExpectedReader]:
        """Those of one queue, by group."""
        return [
            reader
            for row in self._subscriptions
            if row.topic_id == queue.topic_id
            for reader in self._of(row, queue.pk)
        ]

    def _of(self, row: ConsumerGroupTopic, queue: int) -> list[ExpectedReader]:
        epoch = self._epochs.get((row.group_id, queue))
        base = row.pk * EPOCHS_EACH
        if row.group.mode == ConsumerGroup.Mode.CLUSTERING:
            return [ExpectedReader(row.group.name, row.group_id, "", "", row.pk, base, epoch, True)]
        return [
            ExpectedReader(
                group=row.group.name,
                group_id=row.group_id,
                instance=reader_instance(one.pk),
                instance_name=one.name,
                subscription_id=row.pk,
                base_epoch=base,
                epoch=None if epoch is None else epoch + one.epoch,
                required=False,
            )
            for one in self._instances.get(row.group_id, ())
        ]
