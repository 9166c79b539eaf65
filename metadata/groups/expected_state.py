"""State that the nodes must show by metadata: queues, their readers; contradictions in it;
mends of rows.

The queues of topics are read as one consistent state and never from the snapshot of a
process, so that whoever compares it with what a node holds knows which of the two was read
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Exists, F, OuterRef

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
from metadata.membership.rebalance import LIVE_QUEUES
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

SILENT_TIMES = 10  # session timeouts after which a member must have been taken for dead


@dataclass(frozen=True, slots=True)
class ExpectedReader:
    """A reader of a queue in a ready subscription; `instance` is as its row on the node
    names it.

    `epoch` is the highest that may be on the node, None where metadata has no position for
    it;
    `base_epoch` the lowest that counts. `required`: its row must be there. Instances of
    broadcasting groups get theirs when they first acquire.
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
    """A queue that is not being created; `number` is its place in the topic, `head_seen`
    the highest head that a job saw on its node. `gone`: retired, or its topic is deleted.
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
    def of(cls, row: Queue, readers: Iterable[ExpectedReader] = ()) -> ExpectedQueue:
        """Return the queue of a row that was read with its node and topic."""
        return make_view(
            cls,
            row,
            queue=row.pk,
            node_state=row.node.state,
            node_epoch=row.node.epoch,
            gone=row.state == Queue.State.RETIRED or row.topic.state != Topic.State.READY,
            readers=tuple(readers),
        )


def expected_queues(
    *, topics: Sequence[str] | None, actor: Actor, strict: bool = True
) -> list[ExpectedQueue]:
    """The queues of some topics, or of all, by topic and number. Needs `manage` on each
    topic.

    Raises NotFound(topic_not_found) for a name that is no ready topic; leaves it out if not
    `strict`.
    """
    for name in topics or ():
        access.require(actor, "manage", name, what="topic")
    with reachable(), transaction.atomic(using=ALIAS):
        ready = Topic.objects.using(ALIAS).filter(state=Topic.State.READY)
        if topics is not None:
            ready = ready.filter(name__in=topics)
        names = {
            pk: name
            for pk, name in ready.values_list("pk", "name")
            if topics is None or name in topics
        }
        missing = sorted(set(topics or ()) - set(names.values()))
        if missing and strict:
            raise NotFound(f"Topic {missing[0]} does not exist.", code=Code.TOPIC_NOT_FOUND)
        mine = [pk for pk, name in names.items() if access.may(actor, "manage", name)]
        rows = (
            Queue.objects.using(ALIAS)
            .filter(topic__in=mine)
            .exclude(state=Queue.State.CREATING)
        )
        readers = _Readers(mine)
        found = [
            ExpectedQueue.of(row, readers.of(row))
            for row in rows.select_related("node", "topic")
        ]
        return sorted(found, key=lambda one: (one.topic, one.number))


class _Readers:
    """The readers that the queues of some topics must have."""

    def __init__(self, topics: Sequence[int]) -> None:
        rows = ConsumerGroupTopic.objects.using(ALIAS).filter(
            topic__in=topics, state="ready"
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
        named = BroadcastInstance.objects.using(ALIAS).exclude(name__contains=RELEASED_MARK)
        mine = named.filter(group__in=groups).order_by("name")
        self._instances = grouped((one.group_id, one) for one in mine)

    def of(self, queue: Queue) -> list[ExpectedReader]:
        """Those of one queue, by group; none of one that nobody reads any more."""
        return [
            reader
            for row in self._subscriptions
            if row.topic_id == queue.topic_id and queue.state in LIVE_QUEUES
            for reader in self._of(row, queue.pk)
        ]

    def _of(self, row: ConsumerGroupTopic, queue: int) -> list[ExpectedReader]:
        epoch = self._epochs.get((row.group_id, queue))
        base = row.pk * EPOCHS_EACH
        if row.group.mode != ConsumerGroup.Mode.BROADCASTING:
            return [
                ExpectedReader(
                    row.group.name, row.group_id, "", "", row.pk, base, epoch, True
                )
            ]
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


@dataclass(frozen=True, slots=True)
class ExpectedState:
    """Queues by id, `creating` the ids of those that are not ready, and readers that may
    have positions.
    """

    queues: dict[int, ExpectedQueue]
    creating: frozenset[int]
    subscriptions: frozenset[tuple[int, int]]  # (group, topic), in any state
    groups: dict[int, str]
    instances: frozenset[tuple[int, str]]  # (group, instance as reader rows name it)
    broadcasting: frozenset[int]


def read_state() -> ExpectedState:
    """The state of the whole installation as it is now. Raises MetadataUnavailable."""
    with reachable():
        rows = list(Queue.objects.select_related("node", "topic"))
        groups = list(ConsumerGroup.objects.values_list("pk", "name", "mode"))
        named = BroadcastInstance.objects.values_list("group_id", "pk")
        return ExpectedState(
            queues={
                row.pk: ExpectedQueue.of(row)
                for row in rows
                if row.state != Queue.State.CREATING
            },
            creating=frozenset(row.pk for row in rows if row.state == Queue.State.CREATING),
            subscriptions=frozenset(
                ConsumerGroupTopic.objects.values_list("group_id", "topic_id")
            ),
            groups={pk: name for pk, name, _mode in groups},
            instances=frozenset((group, reader_instance(pk)) for group, pk in named),
            broadcasting=frozenset(
                pk for pk, _name, mode in groups if mode == "broadcasting"
            ),
        )


def find_contradictions() -> Iterator[tuple[str, dict[int, list[int]]]]:
    """Yield each kind of contradiction in metadata, with {group: ids of queues or of
    members}.
    """
    theirs = ConsumerGroupTopic.objects.filter(
        group=OuterRef("group"), topic=OuterRef("queue__topic")
    )
    unknown = QueueOffset.objects.filter(~Exists(theirs))
    yield "position_unknown", _by_group(unknown.values_list("group_id", "queue_id"))

    read_by = F("topic__subscriptions__group")
    rows = Queue.objects.filter(
        state__in=LIVE_QUEUES, topic__state="ready", topic__subscriptions__state="ready"
    )
    positions = QueueOffset.objects.filter(queue=OuterRef("pk"), group=OuterRef("reader"))
    lacking = rows.annotate(reader=read_by).filter(~Exists(positions))
    yield "position_missing", _by_group(lacking.values_list("reader", "pk"))

    unheard = ConsumerGroupConsumer.objects.filter(heartbeat__isnull=True)
    yield "heartbeat_missing", _by_group(unheard.values_list("group_id", "pk"))
    yield "member_silent", _by_group(_silent())


def _silent() -> Iterator[tuple[int, int]]:
    """(group, member) of those that should have been taken for dead long ago."""
    columns = (
        "membership__group_id",
        "membership_id",
        "last_seen",
        "membership__group__session_timeout_ms",
    )
    now = database_now()
    for group, member, seen, timeout_ms in Heartbeat.objects.values_list(*columns):
        if seen < before(now, seconds=SILENT_TIMES * timeout_ms / 1000):
            yield group, member


def _by_group(pairs: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    with reachable():
        return {group: sorted(queues) for group, queues in grouped(pairs).items()}


def find_orphaned_retry_topics() -> list[tuple[int, str]]:
    """(id, name) of retry topics whose subscription is gone: nobody retries what lies in
    them.
    """
    theirs = ConsumerGroupTopic.objects.filter(
        group=OuterRef("failure_group"), topic=OuterRef("failure_of")
    )
    with reachable():
        rows = Topic.objects.filter(kind="failure", state="ready").filter(~Exists(theirs))
        return list(rows.order_by("name").values_list("pk", "name"))


def last_change_number() -> int:
    """The number of the last change of metadata."""
    with reachable():
        return ChangeCounter.objects.values_list("n", flat=True).get()


@transactional
def drop_positions(*, group_id: int, queues: list[int]) -> None:
    """Delete a group's positions in queues that it does not subscribe to."""
    lock_group_by_id(group_id)
    theirs = ConsumerGroupTopic.objects.filter(
        group=group_id, topic=OuterRef("queue__topic")
    )
    rows = QueueOffset.objects.filter(group=group_id, queue__in=queues).filter(
        ~Exists(theirs)
    )
    ids = list(rows.values_list("pk", flat=True))
    QueueOffset.objects.filter(pk__in=ids).delete()


@transactional
def add_positions(*, group_id: int, queues: list[int]) -> None:
    """Add the positions that a group's ready subscriptions lack, and have the group
    rebalanced.
    """
    group = lock_group_by_id(group_id)
    made = []
    for queue in Queue.objects.filter(pk__in=queues, state__in=LIVE_QUEUES):
        reading = group.subscriptions.filter(topic=queue.topic_id, state="ready").first()
        known = QueueOffset.objects.filter(group=group, queue=queue).exists()
        if reading is not None and not known:
            made.append(
                QueueOffset(group=group, queue=queue, epoch=reading.pk * EPOCHS_EACH)
            )
    QueueOffset.objects.bulk_create(made)
    rebalance.request(group_id, "positions were added")
    record_change("group", group_id)


@transactional
def add_heartbeats(*, group_id: int, members: list[int]) -> None:
    """Note for members without a heartbeat that they were heard now."""
    lock_group_by_id(group_id)
    mute = ConsumerGroupConsumer.objects.filter(
        group=group_id, pk__in=members, heartbeat__isnull=True
    )
    Heartbeat.objects.bulk_create(
        Heartbeat(membership=row, last_seen=database_now()) for row in mute
    )
