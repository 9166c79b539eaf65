"""Failure topics: the rows. One per subscription of a sharing group holds what its handlers
failed at.

plan (rows, creating) → tables and reader rows are made → make_ready. The group subscribes
to it like to any topic, so rebalances, heartbeats, pulls and commits need to know nothing
of it. What a crash leaves half made is taken back by the sweeps of topics and
subscriptions; `find_missing` finds the pairs that still need one. It goes with its subscription
(metadata.groups.subscription_rows).

Its queues lie on failure nodes. While none is registered there are no failure topics, and
members try again in place; the sweep makes them soon after the first failure node is there.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Exists, OuterRef

from metadata.actors import job
from metadata.db import audit
from metadata.db.changes import record_change
from metadata.db.clock import database_now
from metadata.db.rows import lock_group_by_id
from metadata.db.transactions import reachable, transactional
from metadata.errors import NotFound
from metadata.groups import subscription_rows
from metadata.groups.subscription_rows import EPOCHS_EACH, SubscriptionView, view_of
from metadata.models import (
    ConsumerGroup,
    ConsumerGroupTopic,
    DbNode,
    Queue,
    QueueOffset,
    Topic,
)
from metadata.rules.topics.names import failure_name
from metadata.topics import topic_rows
from metadata.topics.placement import choose_failure_nodes
from metadata.topics.topic_rows import TopicView

QUEUES = 2  # retries are few; two let two members work at them


@dataclass(frozen=True, slots=True)
class FailureTopic:
    topic: TopicView
    subscription: SubscriptionView


@transactional
def plan(*, group_id: int, topic_id: int) -> FailureTopic | None:
    """The rows of the failure topic of a pair, in state creating.

    None if there is one, or if there can be none: the group broadcasts, does not subscribe
    to the topic any more, or no failure node takes queues. Raises Conflict(already_exists)
    if another pair has its name.
    """
    try:
        group = lock_group_by_id(group_id)
    except NotFound:
        return None
    topic = (
        Topic.objects.select_for_update()
        .filter(pk=topic_id, state=Topic.State.READY)
        .first()
    )
    if topic is None or not _wanted(group, topic):
        return None
    placed = choose_failure_nodes(QUEUES)
    if not placed:
        return None
    subscription_rows.check_failure_name(group, topic)
    return _made(group, topic, placed)


def _wanted(group: ConsumerGroup, topic: Topic) -> bool:
    if group.mode == ConsumerGroup.Mode.BROADCASTING or topic.kind != Topic.Kind.NORMAL:
        return False
    if Topic.objects.filter(failure_group=group, failure_of=topic).exists():
        return False
    return (
        group.subscriptions.filter(topic=topic)
        .exclude(state=ConsumerGroupTopic.State.DELETING)
        .exists()
    )


def _made(group: ConsumerGroup, topic: Topic, placed: list[int]) -> FailureTopic:
    now = database_now()
    made = Topic.objects.create(
        name=failure_name(group.name, topic.name),
        kind=Topic.Kind.FAILURE,
        failure_group=group,
        failure_of=topic,
        created_at=now,
    )
    reading = ConsumerGroupTopic.objects.create(
        group=group, topic=made, start=ConsumerGroupTopic.Start.EARLIEST, created_at=now
    )
    for number, node_id in enumerate(placed):
        queue = Queue.objects.create(
            topic=made, node_id=node_id, number=number, state_since=now
        )
        QueueOffset.objects.create(group=group, queue=queue, epoch=reading.pk * EPOCHS_EACH)
    after = {
        "kind": made.kind,
        "group": group.name,
        "topic": topic.name,
        "queues": len(placed),
    }
    audit.record(
        actor=job("failures"), verb="create", kind="topic", name=made.name, after=after
    )
    record_change("topic", made.pk)
    record_change("subscription", reading.pk)
    return FailureTopic(topic_rows.topic_view(made), view_of(reading))


@transactional
def make_ready(made: FailureTopic) -> None:
    """Open a failure topic whose tables and reader rows exist. Raises NotFound if it was
    taken back.
    """
    lock_group_by_id(made.subscription.group_id)
    topic_rows.make_ready(made.topic.id)
    subscription_rows.make_ready(made.subscription.id)


def find_missing() -> list[tuple[int, int]]:
    """(group, topic) of subscriptions without a failure topic that should have one; none
    without a node.
    """
    with reachable():
        if not DbNode.objects.filter(
            kind=DbNode.Kind.FAILURE, state=DbNode.State.READ_WRITE
        ).exists():
            return []
        theirs = Topic.objects.filter(
            failure_group=OuterRef("group_id"), failure_of=OuterRef("topic_id")
        )
        rows = ConsumerGroupTopic.objects.filter(
            ~Exists(theirs),
            state=ConsumerGroupTopic.State.READY,
            group__mode__in=(ConsumerGroup.Mode.CLUSTERING, ConsumerGroup.Mode.SHARE),
            group__deleted_at__isnull=True,
            topic__kind=Topic.Kind.NORMAL,
            topic__state=Topic.State.READY,
        )
        return list(rows.order_by("pk").values_list("group_id", "topic_id"))
