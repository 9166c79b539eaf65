"""State that the nodes must have according to metadata, contradictions within metadata,
and repairs.

The queues of topics are read in one transaction, never from the snapshot of a process.
So the caller knows which was read first when it compares them with a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from django.db import transaction
from django.db.models import Exists, F, OuterRef
from msgspec import Struct

from metadata.actors import Actor
from metadata.cache.snapshot import ALIAS
from metadata.db import access
from metadata.db.changes import record_change
from metadata.db.clock import before, database_now
from metadata.db.consumer_ids import reader_instance
from metadata.db.rows import lock_group_by_id, make_view
from metadata.db.transactions import reachable, transactional
from metadata.errors import Code, NotFound
from metadata.grouping import grouped
from metadata.groups.subscription_rows import EPOCHS_EACH
from metadata.membership import rebalance
from metadata.membership.broadcast_instances import RELEASED_MARK
from metadata.models import (
    BroadcastInstance,
    ChangeCounter,
    ConsumerGroup,
    ConsumerGroupConsumer,
    ConsumerGroupTopic,
    Heartbeat,
    Queue,
    QueueOffset,
    Topic,
)
from metadata.rules.groups.states import GroupMode, SubscriptionState
from metadata.rules.rights import Right
from metadata.rules.topics.states import READABLE_STATES, QueueState, TopicKind, TopicState

SILENT_TIMEOUTS = 10  # session timeouts after which a member must have expired


class ExpectedReader(Struct, frozen=True):
    """A reader of a queue in a ready subscription; `instance` is the key of its reader
    row.

    `epoch` is the highest epoch that the node may have, None if metadata has no
    position; `base_epoch` is the lowest valid one. `required`: the reader row must
    exist. Instances of broadcasting groups get theirs when they first acquire the
    queue.
    """

    group: str
    group_id: int
    instance: str
    instance_name: str
    subscription_id: int
    base_epoch: int
    epoch: int | None
    required: bool


class ExpectedQueue(Struct, frozen=True):
    """A queue that is not being created; `number` is its place in the topic.

    `head_seen` is the highest log end offset that a job saw on its node. `gone`: the
    queue is retired, or its topic deleted.
    """

    topic: str
    topic_id: int
    queue: int
    number: int
    state: str
    node: str
    node_id: int
    node_state: str
    node_epoch: int
    head_seen: int
    gone: bool
    readers: tuple[ExpectedReader, ...] = ()

    @classmethod
    def from_row(cls, row: Queue, readers: Iterable[ExpectedReader] = ()) -> ExpectedQueue:
        """Return the queue of a row that was read with its node and topic."""
        return make_view(
            cls,
            row,
            queue=row.pk,
            node_state=row.node.state,
            node_epoch=row.node.epoch,
            gone=row.state == QueueState.RETIRED or row.topic.state != TopicState.READY,
            readers=tuple(readers),
        )


def expected_queues(
    *, topics: Sequence[str] | None, actor: Actor, strict: bool = True
) -> list[ExpectedQueue]:
    """Return the queues of topics, or of all, by topic and number. Needs `manage` on each
    topic.

    Raises NotFound(topic_not_found) for a name that is no ready topic, unless `strict`
    is False.
    """
    for name in topics or ():
        access.require(actor, Right.MANAGE, name, what="topic")
    # A single transaction, so that queues, subscriptions and positions fit each other.
    with reachable(), transaction.atomic(using=ALIAS):
        ready = Topic.objects.using(ALIAS).filter(state=TopicState.READY)
        if topics is not None:
            ready = ready.filter(name__in=topics)
        # The comparison of the database may ignore case; names do not.
        names = {
            pk: name
            for pk, name in ready.values_list("pk", "name")
            if topics is None or name in topics
        }
        missing = sorted(set(topics or ()) - set(names.values()))
        if missing and strict:
            raise NotFound(f"Topic {missing[0]} does not exist.", code=Code.TOPIC_NOT_FOUND)
        manageable = [
            pk for pk, name in names.items() if access.may(actor, Right.MANAGE, name)
        ]
        rows = (
            Queue.objects.using(ALIAS)
            .filter(topic__in=manageable)
            .exclude(state=QueueState.CREATING)
        )
        readers = _ReaderIndex(manageable)
        queues = [
            ExpectedQueue.from_row(row, readers.readers_of(row))
            for row in rows.select_related("node", "topic")
        ]
        return sorted(queues, key=lambda queue: (queue.topic, queue.number))


class _ReaderIndex:
    """The readers that the queues of some topics must have, read with three queries."""

    def __init__(self, topics: Sequence[int]) -> None:
        rows = ConsumerGroupTopic.objects.using(ALIAS).filter(
            topic__in=topics, state=SubscriptionState.READY
        )
        self._subscriptions = list(rows.select_related("group").order_by("group__name"))
        groups = {row.group_id for row in self._subscriptions}
        positions = QueueOffset.objects.using(ALIAS).filter(
            group__in=groups, queue__topic__in=topics
        )
        self._epochs = {
            (group, queue): epoch
            for group, queue, epoch in positions.order_by().values_list(
                "group_id", "queue_id", "epoch"
            )
        }
        instances = BroadcastInstance.objects.using(ALIAS).exclude(
            name__contains=RELEASED_MARK
        )
        self._instances = grouped(
            (instance.group_id, instance)
            for instance in instances.filter(group__in=groups).order_by("name")
        )

    def readers_of(self, queue: Queue) -> list[ExpectedReader]:
        """Return the readers of a queue by group; none if the queue is not read any more."""
        readers: list[ExpectedReader] = []
        for row in self._subscriptions:
            if row.topic_id != queue.topic_id or queue.state not in READABLE_STATES:
                continue
            broadcasts = row.group.mode == GroupMode.BROADCASTING
            epoch = self._epochs.get((row.group_id, queue.pk))
            # Other groups have a single reader row, whose instance is "".
            instances = [("", "", 0)]
            if broadcasts:
                instances = [
                    (reader_instance(instance.pk), instance.name, instance.epoch)
                    for instance in self._instances.get(row.group_id, ())
                ]
            readers += [
                ExpectedReader(
                    group=row.group.name,
                    group_id=row.group_id,
                    instance=instance,
                    instance_name=name,
                    subscription_id=row.pk,
                    base_epoch=row.pk * EPOCHS_EACH,
                    epoch=None if epoch is None else epoch + instance_epoch,
                    required=not broadcasts,
                )
                for instance, name, instance_epoch in instances
            ]
        return readers


class ExpectedState(Struct, frozen=True):
    """Expected state of all nodes: queues by id, and the readers that may have positions.

    `creating` has the ids of queues that are being created.
    """

    queues: dict[int, ExpectedQueue]
    creating: frozenset[int]
    subscriptions: frozenset[tuple[int, int]]  # (group, topic), in any state
    groups: dict[int, str]
    instances: frozenset[tuple[int, str]]  # (group, instance as reader rows name it)
    broadcasting: frozenset[int]


def read_state() -> ExpectedState:
    """Read the expected state of the whole installation. Raises MetadataUnavailable."""
    with reachable():
        rows = list(Queue.objects.select_related("node", "topic"))
        groups = list(ConsumerGroup.objects.values_list("pk", "name", "mode"))
        instance_rows = BroadcastInstance.objects.values_list("group_id", "pk")
        return ExpectedState(
            queues={
                row.pk: ExpectedQueue.from_row(row)
                for row in rows
                if row.state != QueueState.CREATING
            },
            creating=frozenset(row.pk for row in rows if row.state == QueueState.CREATING),
            subscriptions=frozenset(
                ConsumerGroupTopic.objects.values_list("group_id", "topic_id")
            ),
            groups={pk: name for pk, name, _mode in groups},
            instances=frozenset(
                (group, reader_instance(pk)) for group, pk in instance_rows
            ),
            broadcasting=frozenset(
                pk for pk, _name, mode in groups if mode == GroupMode.BROADCASTING
            ),
        )


def find_contradictions() -> Iterator[tuple[str, dict[int, list[int]]]]:
    """Yield each kind of contradiction within metadata, with {group id: ids of queues or
    members}.
    """
    subscription = ConsumerGroupTopic.objects.filter(
        group=OuterRef("group"), topic=OuterRef("queue__topic")
    )
    unsubscribed = QueueOffset.objects.filter(~Exists(subscription))
    yield "position_unknown", _group_pairs(unsubscribed.values_list("group_id", "queue_id"))

    read_by = F("topic__subscriptions__group")
    rows = Queue.objects.filter(
        state__in=READABLE_STATES,
        topic__state=TopicState.READY,
        topic__subscriptions__state=SubscriptionState.READY,
    )
    positions = QueueOffset.objects.filter(queue=OuterRef("pk"), group=OuterRef("reader"))
    missing = rows.annotate(reader=read_by).filter(~Exists(positions))
    yield "position_missing", _group_pairs(missing.values_list("reader", "pk"))

    unheard = ConsumerGroupConsumer.objects.filter(heartbeat__isnull=True)
    yield "heartbeat_missing", _group_pairs(unheard.values_list("group_id", "pk"))
    yield "member_silent", _group_pairs(_find_silent_members())


def _find_silent_members() -> Iterator[tuple[int, int]]:
    """Yield (group id, member id) of members that should have expired long ago."""
    columns = (
        "membership__group_id",
        "membership_id",
        "last_seen",
        "membership__group__session_timeout_ms",
    )
    now = database_now()
    for group, member, last_seen, timeout_ms in Heartbeat.objects.values_list(*columns):
        if last_seen < before(now, seconds=SILENT_TIMEOUTS * timeout_ms / 1000):
            yield group, member


def _group_pairs(pairs: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    with reachable():
        return {group: sorted(queues) for group, queues in grouped(pairs).items()}


def find_orphaned_retry_topics() -> list[tuple[int, str]]:
    """Return (id, name) of retry topics whose subscription was deleted: their messages are
    never retried.
    """
    subscription = ConsumerGroupTopic.objects.filter(
        group=OuterRef("failure_group"), topic=OuterRef("failure_of")
    )
    with reachable():
        rows = Topic.objects.filter(kind=TopicKind.FAILURE, state=TopicState.READY).filter(
            ~Exists(subscription)
        )
        return list(rows.order_by("name").values_list("pk", "name"))


def last_change_number() -> int:
    with reachable():
        return ChangeCounter.objects.values_list("n", flat=True).get()


@transactional
def drop_positions(*, group_id: int, queues: list[int]) -> None:
    """Delete the positions of a group in queues that it does not subscribe to."""
    # The lock of the group keeps subscriptions from changing.
    lock_group_by_id(group_id)
    subscription = ConsumerGroupTopic.objects.filter(
        group=group_id, topic=OuterRef("queue__topic")
    )
    rows = QueueOffset.objects.filter(group=group_id, queue__in=queues).filter(
        ~Exists(subscription)
    )
    ids = list(rows.values_list("pk", flat=True))
    QueueOffset.objects.filter(pk__in=ids).delete()


@transactional
def add_positions(*, group_id: int, queues: list[int]) -> None:
    """Insert the missing positions of ready subscriptions, and request a rebalance."""
    group = lock_group_by_id(group_id)
    positions = []
    for queue in Queue.objects.filter(pk__in=queues, state__in=READABLE_STATES):
        subscription = group.subscriptions.filter(
            topic=queue.topic_id, state=SubscriptionState.READY
        ).first()
        # Checked again under the lock: a subscription or another repair may have been faster.
        exists = QueueOffset.objects.filter(group=group, queue=queue).exists()
        if subscription is not None and not exists:
            positions.append(
                QueueOffset(group=group, queue=queue, epoch=subscription.pk * EPOCHS_EACH)
            )
    QueueOffset.objects.bulk_create(positions)
    rebalance.request(group_id, "positions were added")
    record_change("group", group_id)


@transactional
def add_heartbeats(*, group_id: int, members: list[int]) -> None:
    """Insert heartbeats, with the current time, for members that have none."""
    # The lock keeps the expiry of the same members out.
    lock_group_by_id(group_id)
    without_heartbeat = ConsumerGroupConsumer.objects.filter(
        group=group_id, pk__in=members, heartbeat__isnull=True
    )
    Heartbeat.objects.bulk_create(
        Heartbeat(membership=row, last_seen=database_now()) for row in without_heartbeat
    )
