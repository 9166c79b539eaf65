"""Retry topics: the rows. Each subscription of a sharing group has one for messages that
failed.

    plan (rows, creating) → tables and reader rows are created → make_ready

The group subscribes to its retry topic like to any topic, so rebalances, heartbeats,
pulls and commits need no special case. Topics that a crash left half created are
deleted by the sweeps of topics and subscriptions; `find_missing` finds pairs that still
need a topic. A retry topic is deleted with its subscription
(metadata.groups.subscription_rows).

Its queues are on retry nodes. While no retry node is registered, there are no retry
topics, and members retry in place; a sweep creates them soon after the first retry
node.
"""

from __future__ import annotations

from django.db.models import Exists, OuterRef
from msgspec import Struct

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
    ConsumerGroupTopic,
    DbNode,
    Queue,
    QueueOffset,
    Topic,
)
from metadata.rules.audit_verbs import Verb
from metadata.rules.groups.states import GroupMode, Start, SubscriptionState
from metadata.rules.nodes import NodeKind, NodeState
from metadata.rules.topics.names import failure_name
from metadata.rules.topics.states import TopicKind, TopicState
from metadata.topics import topic_rows
from metadata.topics.placement import choose_failure_nodes
from metadata.topics.topic_rows import TopicView

QUEUES = 2  # retries are few; with two queues, two members can handle them


class FailureTopic(Struct, frozen=True):
    topic: TopicView
    subscription: SubscriptionView


@transactional
def plan(*, group_id: int, topic_id: int) -> FailureTopic | None:
    """Insert the retry topic of a group and topic, in state creating.

    Return None if it exists, or if there can be none: the group broadcasts, does not
    subscribe to the topic any more, or no retry node takes queues. Raises
    Conflict(already_exists) if the name is in use.
    """
    try:
        group = lock_group_by_id(group_id)
    except NotFound:
        return None
    # The group is locked before the topic, as in all transactions.
    topic = (
        Topic.objects.select_for_update()
        .filter(pk=topic_id, state=TopicState.READY)
        .first()
    )
    if (
        topic is None
        or group.mode == GroupMode.BROADCASTING
        or topic.kind != TopicKind.NORMAL
        or Topic.objects.filter(failure_group=group, failure_of=topic).exists()
        or not group.subscriptions.filter(topic=topic)
        .exclude(state=SubscriptionState.DELETING)
        .exists()
    ):
        return None
    node_ids = choose_failure_nodes(QUEUES)
    if not node_ids:
        return None
    subscription_rows.check_failure_name(group, topic)
    now = database_now()
    retry_topic = Topic.objects.create(
        name=failure_name(group.name, topic.name),
        kind=TopicKind.FAILURE,
        failure_group=group,
        failure_of=topic,
        created_at=now,
    )
    # From the beginning: a failed message may be sent before the subscription is ready.
    subscription = ConsumerGroupTopic.objects.create(
        group=group,
        topic=retry_topic,
        start=Start.EARLIEST,
        created_at=now,
    )
    for number, node_id in enumerate(node_ids):
        queue = Queue.objects.create(
            topic=retry_topic, node_id=node_id, number=number, state_since=now
        )
        QueueOffset.objects.create(
            group=group, queue=queue, epoch=subscription.pk * EPOCHS_EACH
        )
    after = {
        "kind": retry_topic.kind,
        "group": group.name,
        "topic": topic.name,
        "queues": len(node_ids),
    }
    audit.record(
        actor=job("failures"),
        verb=Verb.CREATE,
        kind="topic",
        name=retry_topic.name,
        after=after,
    )
    record_change("topic", retry_topic.pk)
    record_change("subscription", subscription.pk)
    return FailureTopic(topic_rows.topic_view(retry_topic), view_of(subscription))


@transactional
def make_ready(planned: FailureTopic) -> None:
    """Open a retry topic whose tables and reader rows were created. Raises NotFound if it
    was deleted.
    """
    # Locks the group before the topic, as in all transactions.
    lock_group_by_id(planned.subscription.group_id)
    topic_rows.make_ready(planned.topic.id)
    subscription_rows.make_ready(planned.subscription.id)


def find_missing() -> list[tuple[int, int]]:
    """Return (group id, topic id) of subscriptions that should have a retry topic. []
    without a retry node.
    """
    with reachable():
        if not DbNode.objects.filter(
            kind=NodeKind.FAILURE, state=NodeState.READ_WRITE
        ).exists():
            return []
        retry_topic = Topic.objects.filter(
            failure_group=OuterRef("group_id"), failure_of=OuterRef("topic_id")
        )
        rows = ConsumerGroupTopic.objects.filter(
            ~Exists(retry_topic),
            state=SubscriptionState.READY,
            group__mode__in=(GroupMode.CLUSTERING, GroupMode.SHARE),
            group__deleted_at__isnull=True,
            topic__kind=TopicKind.NORMAL,
            topic__state=TopicState.READY,
        )
        return list(rows.order_by("pk").values_list("group_id", "topic_id"))
