"""Draining queues: how many messages each group has not read, and their retirement.

`layout.shrink` in metadata made the queues read-only and moved their slots to others. When
every subscription has committed up to the head, `retire_drained` retires them. Three days
later `drop_retired` drops their tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.heads.gap_check import count_messages
from messagestore.pool import node_pools
from messagestore.produce import delayed_reassignment
from messagestore.tables import promotion_sql, queue_sql, reader_sql
from messagestore.topology import queue_states
from metadata.actors import Actor
from metadata.db import access
from metadata.groups import layout, subscribers
from metadata.groups.subscribers import ActiveSubscription, TopicQueues
from metadata.membership import broadcast_instances
from metadata.rules.groups.states import SubscriptionState
from metadata.rules.rights import Right
from metadata.rules.topics.states import READABLE_STATES, QueueState
from metadata.rules.wire import Number
from metadata.topics import topic_rows
from metadata.topics.topic_rows import DROP_AFTER_DAYS, QueueView, TopicView

# Time since the queue's last change of state before it may be retired. After it no client
# repeats a send that this queue may have stored (delivery_timeout_ms is 120 s), and no broker
# has an older snapshot.
REST_S = 180.0

# (group, queue) → unread messages of each reader, None if unknown. Only a broadcasting group
# has several readers: its instances.
Counts = dict[tuple[str, int], list[int | None]]
Bounds = dict[int, tuple[int, int]]  # queue → (low, head)


class Unread(Struct, frozen=True):
    """Number of messages that a group has not read; null while a node does not answer."""

    group: str
    messages: Annotated[
        Number | None,
        Meta(
            description="unread messages; of the slowest instance in a broadcasting group"
        ),
    ]


class QueueDrain(Struct, frozen=True):
    """A queue with its bounds, its number of slots, and the unread messages of each group.

    `low` and `head` are None while the node is unreachable. `draining`: the queue is
    read-only for good, and will be retired when everything is read.
    """

    queue: QueueView
    slots: int
    draining: bool
    low: int | None
    head: int | None
    unread: tuple[Unread, ...]


def describe(*, topic: str, actor: Actor, queue: int | None = None) -> list[QueueDrain]:
    """Return queues of a topic, in order of number. Needs any right on the topic.

    `queue` selects a single queue by its id. Without `manage` the actor sees only groups on
    which it has a right. Raises NotFound(topic_not_found, queue_not_found).
    """
    topic_view = topic_rows.find_topic(name=topic, actor=actor)
    queue_views = [
        queue_view
        for queue_view in topic_view.queues
        if queue is None or queue_view.queue == queue
    ]
    if queue is not None and not queue_views:
        raise layout.queue_not_found(topic, queue)
    subscriptions = subscribers.active_subscriptions(topic_view.id)
    if not access.may(actor, Right.MANAGE, topic):
        subscriptions = [
            subscription
            for subscription in subscriptions
            if access.may_see(actor, subscription.group)
        ]
    counts, bounds = _read_nodes(subscriptions, queue_views)
    slots_of = Counter(topic_view.layout)
    drains = []
    for queue_view in queue_views:
        slots = slots_of[queue_view.queue]
        low, head = bounds.get(queue_view.queue, (None, None))
        readers = subscriptions if queue_view.state in READABLE_STATES else ()
        unread_by_group = tuple(
            Unread(
                subscription.group,
                _slowest(counts.get((subscription.group, queue_view.queue))),
            )
            for subscription in readers
        )
        drains.append(
            QueueDrain(
                queue_view,
                slots,
                draining=queue_view.state == QueueState.READ_ONLY and slots == 0,
                low=low,
                head=head,
                unread=unread_by_group,
            )
        )
    return drains


def unread(*, topic: TopicView, queues: Sequence[QueueView]) -> tuple[Unread, ...]:
    """Return the unread messages of each group of the topic, in several queues together."""
    subscriptions = subscribers.active_subscriptions(topic.id)
    counts_by_reader, _ = _read_nodes(subscriptions, queues)
    unread_by_group = []
    for subscription in subscriptions:
        counts = [
            _slowest(counts_by_reader.get((subscription.group, queue.queue)))
            for queue in queues
        ]
        # A sum without the unreachable nodes would be too low, so it is unknown.
        total = None if None in counts else sum(count or 0 for count in counts)
        unread_by_group.append(Unread(subscription.group, total))
    return tuple(unread_by_group)


def _read_nodes(
    subscriptions: Sequence[ActiveSubscription], queues: Sequence[QueueView]
) -> tuple[Counts, Bounds]:
    """Return unread counts by reader, and bounds. Unreachable nodes are left out of both."""
    reader_names = broadcast_instances.reader_names_by_group(
        [subscription.group_id for subscription in subscriptions]
    )
    readers = [
        (subscription.group, subscription.group_id, name)
        for subscription in subscriptions
        for name in reader_names[subscription.group_id]
    ]
    counts: Counts = {}
    bounds: Bounds = {}

    def read(session: Session, queues_of_node: Sequence[QueueView]) -> None:
        queue_ids = [queue.queue for queue in queues_of_node]
        node_counts: Counts = {
            (subscription.group, queue): []
            for subscription in subscriptions
            for queue in queue_ids
        }
        gaps = promotion_sql.read_all_gaps(session, queues=queue_ids)
        # Group 0 has no reader row, so this returns only the bounds.
        bounds_of_queues = reader_sql.read_positions(session, group_id=0, queues=queue_ids)
        for group, group_id, name in readers:
            for position in reader_sql.read_positions(
                session, group_id=group_id, queues=queue_ids, instance=name
            ).values():
                unread_messages = None
                if position.committed is not None:
                    unread_messages = count_messages(
                        max(position.committed, position.low),
                        position.head,
                        gaps=gaps.get(position.queue, ()),
                    )
                node_counts[group, position.queue].append(unread_messages)
        # Only now: a node that fails halfway contributes nothing.
        counts.update(node_counts)
        bounds.update(
            (position.queue, (position.low, position.head))
            for position in bounds_of_queues.values()
        )

    sweeping.query_nodes(
        sweeping.group_by_node(queues), read, subject="Number of unread messages"
    )
    return counts, bounds


def _slowest(counts: Sequence[int | None] | None) -> int | None:
    """Return the unread messages of the slowest reader; None if any of them is unknown."""
    if counts is None or None in counts:
        return None
    return max((count for count in counts if count is not None), default=0)


def retire_drained(*, rest_s: float = REST_S) -> int:
    """Retire draining queues that every group has read to the end. Returns how many."""
    return sweeping.run_each(
        (
            (topic_queues, queue)
            for topic_queues in subscribers.draining(rest_s)
            for queue in topic_queues.queues
        ),
        act=lambda pair: _retire(*pair),
        name=lambda pair: f"Retiring queue {pair[1].queue} of topic {pair[0].topic.name}",
    )


def _retire(topic_queues: TopicQueues, queue: QueueView) -> bool:
    """Retire a queue if every subscription has read it. Returns True if it was retired."""
    with sweeping.log_failure(
        f"Retiring queue {queue.queue} of topic {topic_queues.topic.name}"
    ):
        if _find_finished_readers(topic_queues.topic, queue) is None:
            return False
        try:
            # A send or retry may have arrived since the first check. So close the queue on
            # its node, then check again: its head cannot move any more.
            queue_states.set_heads([queue.queue], state=QueueState.RETIRED)
            subscription_ids = _find_finished_readers(topic_queues.topic, queue)
            is_retired = subscription_ids is not None and layout.retire(
                topic_id=topic_queues.topic.id, queue=queue.queue, read_by=subscription_ids
            )
        finally:
            # Opens the head again if metadata did not retire the queue.
            queue_states.settle_later([queue.queue])
        if is_retired:
            with node_pools.node(queue.node_id).reading() as session:
                queue_sql.delete_queue_readers(session, queue=queue.queue)
        return is_retired
    return False


def _find_finished_readers(topic: TopicView, queue: QueueView) -> list[int] | None:
    """Return the ids of all subscriptions if all have read the queue to its end, else None."""
    subscriptions = subscribers.active_subscriptions(topic.id)
    counts, _ = _read_nodes(subscriptions, [queue])
    all_read = all(
        subscription.state == SubscriptionState.READY
        and _slowest(counts.get((subscription.group, queue.queue))) == 0
        for subscription in subscriptions
    )
    return [subscription.id for subscription in subscriptions] if all_read else None


def drop_retired(*, after_days: float = DROP_AFTER_DAYS) -> int:
    """Drop tables and rows of queues that were retired long enough ago. Returns how many."""

    def drop(pair: tuple[TopicQueues, QueueView]) -> None:
        topic_queues, queue = pair
        # Delayed messages that name this queue go to another queue of the topic.
        delayed_reassignment.reassign(queue.queue, topic_id=topic_queues.topic.id)
        with node_pools.node(queue.node_id).writing() as session:
            queue_sql.drop_queue(session, queue=queue.queue)
        layout.remove(topic_id=topic_queues.topic.id, queue=queue.queue)

    return sweeping.run_each(
        (
            (topic_queues, queue)
            for topic_queues in subscribers.due_for_drop(after_days)
            for queue in topic_queues.queues
        ),
        act=drop,
        name=lambda pair: f"Dropping the table of queue {pair[1].queue}",
    )
