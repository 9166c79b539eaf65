"""Contents that nodes must have by metadata, whole; contradictions in metadata; and mends of its rows.

For the check of metadata against nodes (`messagestore.consistency`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import Exists, F, OuterRef

from metadata.db.changes import changed
from metadata.db.clock import before, database_now
from metadata.db.consumer_ids import reader_instance
from metadata.db.rows import group_by_id
from metadata.db.transactions import reachable, transactional
from metadata.groups.subscription_rows import EPOCHS_EACH
from metadata.membership import rebalance
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
LIVE = (Queue.State.READ_WRITE, Queue.State.READ_ONLY)


@dataclass(frozen=True, slots=True)
class LedgerQueue:
    """A queue that is ready; `head` is the highest that a job saw on its node."""

    id: int
    topic: str
    topic_id: int
    node_id: int
    retired: bool
    head: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """All queues by id, `making` the ids of those that are not ready, and who may have positions in which."""

    queues: dict[int, LedgerQueue]
    making: frozenset[int]
    readings: frozenset[tuple[int, int]]  # (group, topic) of subscriptions in any state
    groups: dict[int, str]
    instances: frozenset[tuple[int, str]]  # (group, instance as reader rows name it)
    broadcasting: frozenset[int]


def read() -> Ledger:
    """The ledger as it is now. Raises MetadataUnavailable."""
    with reachable():
        rows = list(Queue.objects.select_related("topic"))
        unready = (Queue.State.CREATING,)
        groups = list(ConsumerGroup.objects.values_list("pk", "name", "mode"))
        named = BroadcastInstance.objects.values_list("group_id", "pk")
        return Ledger(
            queues={row.pk: _queue(row) for row in rows if row.state not in unready},
            making=frozenset(row.pk for row in rows if row.state in unready),
            readings=frozenset(ConsumerGroupTopic.objects.values_list("group_id", "topic_id")),
            groups={pk: name for pk, name, _mode in groups},
            instances=frozenset((group, reader_instance(pk)) for group, pk in named),
            broadcasting=frozenset(pk for pk, _name, mode in groups if mode == "broadcasting"),
        )


def _queue(row: Queue) -> LedgerQueue:
    return LedgerQueue(
        id=row.pk,
        topic=row.topic.name,
        topic_id=row.topic_id,
        node_id=row.node_id,
        retired=row.state == Queue.State.RETIRED or row.topic.state != Topic.State.READY,
        head=row.head_seen,
    )


def positions_without_subscription() -> dict[int, list[int]]:
    """{group: queues} of positions in queues whose topic the group does not subscribe to."""
    theirs = ConsumerGroupTopic.objects.filter(group=OuterRef("group"), topic=OuterRef("queue__topic"))
    return _by_group(QueueOffset.objects.filter(~Exists(theirs)).values_list("group_id", "queue_id"))


def subscriptions_without_position() -> dict[int, list[int]]:
    """{group: queues} that a ready subscription should have positions in, and has not."""
    rows = Queue.objects.filter(state__in=LIVE, topic__state="ready", topic__subscriptions__state="ready")
    groups = F("topic__subscriptions__group")
    theirs = QueueOffset.objects.filter(queue=OuterRef("pk"), group=OuterRef("reader"))
    lacking = rows.annotate(reader=groups).filter(~Exists(theirs))
    return _by_group(lacking.values_list("reader", "pk"))


def _by_group(pairs: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    with reachable():
        for group, queue in pairs:
            found.setdefault(group, []).append(queue)
    return {group: sorted(queues) for group, queues in found.items()}


def lone_failure_topics() -> list[tuple[int, str]]:
    """(id, name) of failure topics whose subscription is gone: nobody retries what lies in them."""
    theirs = ConsumerGroupTopic.objects.filter(group=OuterRef("failure_group"), topic=OuterRef("failure_of"))
    with reachable():
        rows = Topic.objects.filter(kind="failure", state="ready").filter(~Exists(theirs))
        return list(rows.order_by("name").values_list("pk", "name"))


def members_without_heartbeat() -> dict[int, list[int]]:
    """{group: members} that can never be taken for dead, as nothing says when they were heard."""
    rows = ConsumerGroupConsumer.objects.filter(heartbeat__isnull=True)
    return _by_group(rows.values_list("group_id", "pk"))


def silent_members() -> dict[int, list[int]]:
    """{group: members} that were silent for so long that they should have been taken for dead."""
    columns = ("membership__group_id", "membership_id", "last_seen", "membership__group__session_timeout_ms")
    with reachable():
        now = database_now()
        late = [
            (group, member)
            for group, member, seen, timeout_ms in Heartbeat.objects.values_list(*columns)
            if seen < before(now, seconds=SILENT_TIMES * timeout_ms / 1000)
        ]
    return _by_group(late)


def change() -> int:
    """The number of the last change of metadata."""
    with reachable():
        return ChangeCounter.objects.values_list("n", flat=True).get()


@transactional
def drop_positions(*, group_id: int, queues: list[int]) -> int:
    """Deletes a group's positions in queues that it does not subscribe to; how many."""
    group_by_id(group_id)
    theirs = ConsumerGroupTopic.objects.filter(group=group_id, topic=OuterRef("queue__topic"))
    rows = QueueOffset.objects.filter(group=group_id, queue__in=queues).filter(~Exists(theirs))
    ids = list(rows.values_list("pk", flat=True))
    return QueueOffset.objects.filter(pk__in=ids).delete()[0]


@transactional
def add_positions(*, group_id: int, queues: list[int]) -> int:
    """Gives a group the positions that its ready subscriptions lack, and has it rebalanced; how many."""
    group = group_by_id(group_id)
    made = []
    for queue in Queue.objects.filter(pk__in=queues, state__in=LIVE):
        reading = group.subscriptions.filter(topic=queue.topic_id, state="ready").first()
        known = QueueOffset.objects.filter(group=group, queue=queue).exists()
        if reading is not None and not known:
            made.append(QueueOffset(group=group, queue=queue, epoch=reading.pk * EPOCHS_EACH))
    QueueOffset.objects.bulk_create(made)
    rebalance.request(group_id, "positions were added")
    changed("group", group_id)
    return len(made)


@transactional
def add_heartbeats(*, group_id: int, members: list[int]) -> int:
    """Says of members that nobody knows when they were heard that it was now; how many."""
    group_by_id(group_id)
    mute = ConsumerGroupConsumer.objects.filter(group=group_id, pk__in=members, heartbeat__isnull=True)
    made = [Heartbeat(membership=row, last_seen=database_now()) for row in mute]
    Heartbeat.objects.bulk_create(made)
    return len(made)
