"""Groups that read a topic, and its queues that wait for something: lists, changing
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from django.db.models import F

from metadata.db.clock import before, database_now
from metadata.db.transactions import reachable, read_in_pages
from metadata.grouping import grouped
from metadata.groups.subscription_rows import EPOCHS_EACH
from metadata.models import ConsumerGroupTopic, DbNode, Queue, Topic
from metadata.topics.topic_rows import QueueView, TopicView, topic_view


@dataclass(frozen=True, slots=True)
class ActiveSubscription:
    """A subscription of a topic that is not being taken down; `id` is the subscription's."""

    id: int
    group_id: int
    group: str
    state: str
    base_epoch: int


@dataclass(frozen=True, slots=True)
class SubscriptionId:
    """A ready subscription, for the job that records its lag."""

    id: int
    group_id: int
    topic_id: int
    topic: str


@dataclass(frozen=True, slots=True)
class TopicQueues:
    """Some queues of a topic that a sweep has to deal with."""

    topic: TopicView
    queues: tuple[QueueView, ...]


def active_subscriptions(topic_id: int) -> list[ActiveSubscription]:
    """The subscriptions of a topic, by group, without those that are on their way out."""
    rows = ConsumerGroupTopic.objects.filter(topic_id=topic_id).exclude(state="deleting")
    columns = rows.order_by("group__name").values_list(
        "pk", "group_id", "group__name", "state"
    )
    with reachable():
        return [
            ActiveSubscription(*row, base_epoch=row[0] * EPOCHS_EACH) for row in columns
        ]


def subscriptions_by_lag_age() -> list[tuple[str, list[SubscriptionId]]]:
    """(group, its ready subscriptions), the groups whose lag was not recorded for longest
    first.
    """
    rows = ConsumerGroupTopic.objects.filter(state="ready", group__deleted_at__isnull=True)
    rows = rows.order_by(F("lag_at").asc(nulls_first=True), "pk")
    columns = rows.values_list("group__name", "pk", "group_id", "topic_id", "topic__name")
    with reachable():
        return list(grouped((row[0], SubscriptionId(*row[1:])) for row in columns).items())


def stuck_in_creation(older_than_s: float) -> Iterator[TopicQueues]:
    """Queues of ready topics that have been creating for longer than that: a crash left
    them.
    """
    return _waiting("creating", older_than_s)


def draining(rest_s: float) -> Iterator[TopicQueues]:
    """Queues that are read-only for so long, and that no slot of their topic's layout
    names.
    """
    for waiting in _waiting("read_only", rest_s):
        slots = set(waiting.topic.layout)
        queues = tuple(one for one in waiting.queues if one.queue not in slots)
        if queues:
            yield TopicQueues(waiting.topic, queues)


def due_for_drop(after_days: float) -> Iterator[TopicQueues]:
    return _waiting("retired", after_days * 86_400)


def _waiting(state: str, for_s: float) -> Iterator[TopicQueues]:
    """The queues of ready topics that have been in a state for so long, by topic."""
    with reachable():
        limit = before(database_now(), seconds=for_s)
        rows = Queue.objects.filter(
            state=state, state_since__lt=limit, topic__state=Topic.State.READY
        )
        found = grouped(rows.order_by("pk").values_list("topic_id", "pk"))
    for page in read_in_pages(Topic.objects.filter(pk__in=[*found])):
        with reachable():
            topics = [topic_view(row) for row in page]
        for topic in topics:
            yield TopicQueues(
                topic, tuple(one for one in topic.queues if one.queue in found[topic.id])
            )


def nodes_of_queues(queues: Collection[int]) -> dict[int, int]:
    """Queue → the node that holds it, also of topics that are deleted, which no snapshot
    has.
    """
    with reachable():
        return dict(
            Queue.objects.filter(pk__in=list(queues))
            .order_by("pk")
            .values_list("pk", "node_id")
        )


def head_state(queue: int) -> str | None:
    """The state that the queue's head shall have on its node; None if there is nothing to
    say of it.
    """
    return _head_states(pk=queue).get(queue)


def head_states(node_id: int) -> dict[int, str]:
    """Queue → the state that its head shall have, of a node; those that are not ready, or
    whose topics are deleted, are left out.
    """
    return _head_states(node=node_id)


def _head_states(**which: int) -> dict[int, str]:
    rows = Queue.objects.filter(**which, topic__state=Topic.State.READY)
    columns = rows.exclude(state=Queue.State.CREATING).values_list(
        "pk", "state", "node__state"
    )
    with reachable():
        return {
            queue: _head_state(state, node_state) for queue, state, node_state in columns
        }


def _head_state(state: str, node_state: str) -> str:
    if state == Queue.State.RETIRED:
        return "retired"
    both_open = state == Queue.State.READ_WRITE and node_state == DbNode.State.READ_WRITE
    return "rw" if both_open else "ro"
