"""Read-only lists of the groups that read a topic, and of queues that a sweep must handle."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from django.db.models import F
from msgspec import Struct

from metadata.db.clock import before, database_now
from metadata.db.transactions import reachable, read_in_pages
from metadata.grouping import grouped
from metadata.groups.subscription_rows import EPOCHS_EACH
from metadata.models import ConsumerGroupTopic, Queue, Topic
from metadata.rules.groups.states import SubscriptionState
from metadata.rules.nodes import NodeState
from metadata.rules.topics.states import QueueState, TopicState
from metadata.topics.topic_rows import QueueView, TopicView, topic_view


class ActiveSubscription(Struct, frozen=True):
    """A subscription of a topic that is not being deleted; `id` is that of the
    subscription.
    """

    id: int
    group_id: int
    group: str
    state: str
    base_epoch: int


class SubscriptionId(Struct, frozen=True):
    """A ready subscription, for the job that records lag."""

    id: int
    group_id: int
    topic_id: int
    topic: str


class TopicQueues(Struct, frozen=True):
    """A topic with those of its queues that a sweep must handle."""

    topic: TopicView
    queues: tuple[QueueView, ...]


def active_subscriptions(topic_id: int) -> list[ActiveSubscription]:
    """Return the subscriptions of a topic by group, without those that are being deleted."""
    rows = ConsumerGroupTopic.objects.filter(topic_id=topic_id).exclude(
        state=SubscriptionState.DELETING
    )
    columns = rows.order_by("group__name").values_list(
        "pk", "group_id", "group__name", "state"
    )
    with reachable():
        return [
            ActiveSubscription(*row, base_epoch=row[0] * EPOCHS_EACH) for row in columns
        ]


def subscriptions_by_lag_age() -> list[tuple[str, list[SubscriptionId]]]:
    """Return (group, its ready subscriptions); first the groups whose lag was recorded
    longest ago.
    """
    rows = ConsumerGroupTopic.objects.filter(
        state=SubscriptionState.READY, group__deleted_at__isnull=True
    )
    rows = rows.order_by(F("lag_at").asc(nulls_first=True), "pk")
    columns = rows.values_list("group__name", "pk", "group_id", "topic_id", "topic__name")
    with reachable():
        return list(grouped((row[0], SubscriptionId(*row[1:])) for row in columns).items())


def stuck_in_creation(older_than_s: float) -> Iterator[TopicQueues]:
    """Yield queues of ready topics that are in state creating for longer, because of a
    crash.
    """
    return _queues_in_state(QueueState.CREATING, older_than_s)


def draining(for_s: float) -> Iterator[TopicQueues]:
    """Yield queues that have been read-only and without slots for that time."""
    for topic_queues in _queues_in_state(QueueState.READ_ONLY, for_s):
        queues_with_slots = set(topic_queues.topic.layout)
        queues = tuple(
            queue for queue in topic_queues.queues if queue.queue not in queues_with_slots
        )
        if queues:
            yield TopicQueues(topic_queues.topic, queues)


def due_for_drop(after_days: float) -> Iterator[TopicQueues]:
    """Yield queues that have been retired for that time, so that their tables can be
    dropped.
    """
    return _queues_in_state(QueueState.RETIRED, after_days * 86_400)


def _queues_in_state(state: str, for_s: float) -> Iterator[TopicQueues]:
    with reachable():
        since = before(database_now(), seconds=for_s)
        rows = Queue.objects.filter(
            state=state, state_since__lt=since, topic__state=TopicState.READY
        )
        queues_by_topic = grouped(rows.order_by("pk").values_list("topic_id", "pk"))
    # In pages, because the layout of a topic alone has 6 KB.
    for page in read_in_pages(Topic.objects.filter(pk__in=[*queues_by_topic])):
        with reachable():
            topics = [topic_view(row) for row in page]
        for topic in topics:
            yield TopicQueues(
                topic,
                tuple(
                    queue
                    for queue in topic.queues
                    if queue.queue in queues_by_topic[topic.id]
                ),
            )


def nodes_of_queues(queues: Collection[int]) -> dict[int, int]:
    """Return the node of each queue, also for deleted topics, which the snapshot does not
    have.
    """
    with reachable():
        return dict(
            Queue.objects.filter(pk__in=list(queues))
            .order_by("pk")
            .values_list("pk", "node_id")
        )


def head_state(queue: int) -> str | None:
    """Return the state that the head of a queue must have on its node, None for an unknown
    queue.
    """
    return _read_head_states(pk=queue).get(queue)


def head_states(node_id: int) -> dict[int, str]:
    """Return the states that heads must have on a node, by queue id.

    Queues that are being created, and those of deleted topics, are left out.
    """
    return _read_head_states(node=node_id)


def _read_head_states(**conditions: int) -> dict[int, str]:
    rows = Queue.objects.filter(**conditions, topic__state=TopicState.READY)
    columns = rows.exclude(state=QueueState.CREATING).values_list(
        "pk", "state", "node__state"
    )
    with reachable():
        # A queue takes messages only if its node does, too.
        return {
            queue: QueueState.RETIRED
            if state == QueueState.RETIRED
            else "rw"
            if state == QueueState.READ_WRITE and node_state == NodeState.READ_WRITE
            else "ro"
            for queue, state, node_state in columns
        }
