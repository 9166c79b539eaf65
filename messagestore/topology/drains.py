"""Draining queues: how much of them each group has still to read; retired when nothing is
left.

`layout.shrink` of metadata made them read-only and took their slots. When every
subscription has committed up to the head, `retire_drained` retires them, and three days
later `drop_retired` drops their tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.heads.gap_check import left
from messagestore.pool import node_pools
from messagestore.produce import delayed_reassignment
from messagestore.tables import promotion_sql, queue_sql, reader_sql
from messagestore.tables.shapes import Position
from messagestore.topology import queue_states
from metadata.actors import Actor
from metadata.db import access
from metadata.groups import layout, subscribers
from metadata.groups.subscribers import ActiveSubscription, TopicQueues
from metadata.membership import broadcast_instances
from metadata.topics import topic_rows
from metadata.topics.topic_rows import DROP_AFTER_DAYS, QueueView, TopicView

# A queue rests so long after its last change of state: by then no client repeats a send
# whose first try it
# may have stored (delivery_timeout_ms is 120 s), and no broker has an older snapshot of it.
REST_S = 180.0

# (group, queue) → unread by one reader, or each instance
Counts = dict[tuple[str, int], list[int | None]]
Bounds = dict[int, tuple[int, int]]  # queue → low, head


@dataclass(frozen=True, slots=True)
class Unread:
    """Number of messages a group has not read, a broadcasting one's slowest instance; None:
    not known.
    """

    group: str
    messages: int | None


@dataclass(frozen=True, slots=True)
class QueueDrain:
    """A queue, its bounds (None while its node is away), its slots, and what is unread in
    it, by group.

    `draining`: it is read-only for good, and retired when all is read.
    """

    queue: QueueView
    slots: int
    draining: bool
    low: int | None
    head: int | None
    unread: tuple[Unread, ...]


def describe(*, topic: str, actor: Actor, queue: int | None = None) -> list[QueueDrain]:
    """The queues of a topic, or the one named, by number. Needs any right on the topic.

    Who may not `manage` it is told only of groups on which it has a right. Raises
    NotFound(topic_not_found, queue_not_found).
    """
    view = topic_rows.find_topic(name=topic, actor=actor)
    chosen = [one for one in view.queues if queue is None or one.queue == queue]
    if queue is not None and not chosen:
        raise layout.queue_not_found(topic, queue)
    reading = subscribers.active_subscriptions(view.id)
    if not access.may(actor, "manage", topic):
        reading = [one for one in reading if access.may_see(actor, one.group)]
    counts, bounds = _read(reading, chosen)
    slots_of = Counter(view.layout)
    found = []
    for one in chosen:
        slots = slots_of[one.queue]
        low, head = bounds.get(one.queue, (None, None))
        readers = reading if one.state in ("read_only", "read_write") else ()
        left = tuple(
            Unread(each.group, _worst(counts.get((each.group, one.queue))))
            for each in readers
        )
        draining = one.state == "read_only" and slots == 0
        found.append(
            QueueDrain(one, slots, draining=draining, low=low, head=head, unread=left)
        )
    return found


def unread(*, topic: TopicView, queues: Sequence[QueueView]) -> tuple[Unread, ...]:
    """Count the messages that each group of the topic has not read in some queues together."""
    reading = subscribers.active_subscriptions(topic.id)
    counts, _ = _read(reading, queues)
    found = []
    for one in reading:
        mine = [_worst(counts.get((one.group, queue.queue))) for queue in queues]
        known = [count for count in mine if count is not None]
        found.append(Unread(one.group, sum(known) if len(known) == len(mine) else None))
    return tuple(found)


def _read(
    reading: Sequence[ActiveSubscription], queues: Sequence[QueueView]
) -> tuple[Counts, Bounds]:
    """Count what every reader has left, and read the bounds; nothing of a node that is
    away.
    """
    names = broadcast_instances.reader_names_by_group([one.group_id for one in reading])
    readers = [
        (one.group, one.group_id, name) for one in reading for name in names[one.group_id]
    ]
    counts: Counts = {}
    bounds: Bounds = {}

    def read(session: Session, here: Sequence[QueueView]) -> None:
        mine = [one.queue for one in here]
        of_node: Counts = {(one.group, queue): [] for one in reading for queue in mine}
        gaps = promotion_sql.read_all_gaps(session, queues=mine)
        nobody = reader_sql.read_positions(session, group_id=0, queues=mine)
        for group, group_id, name in readers:
            places = reader_sql.read_positions(
                session, group_id=group_id, queues=mine, instance=name
            )
            for place in places.values():
                of_node[group, place.queue].append(_left(place, gaps.get(place.queue, ())))
        counts.update(of_node)
        bounds.update((place.queue, (place.low, place.head)) for place in nobody.values())

    sweeping.query_nodes(
        sweeping.group_by_node(queues), read, subject="Number of unread messages"
    )
    return counts, bounds


def _left(place: Position, gaps: Sequence[tuple[int, int]]) -> int | None:
    """Number of messages that a reader has left, without what lies in declared gaps; None:
    not known.
    """
    if place.committed is None:
        return None
    return left(max(place.committed, place.low), place.head, gaps=gaps)


def _worst(counts: Sequence[int | None] | None) -> int | None:
    """Number of messages that the slowest reader has left; None if one of them is not
    known.
    """
    if counts is None or None in counts:
        return None
    return max((count for count in counts if count is not None), default=0)


def retire_drained(*, rest_s: float = REST_S) -> int:
    """Retire the draining queues that every group has read to the end; return how many. One
    bounded pass.
    """
    return sweeping.run_each(
        (
            (waiting, queue)
            for waiting in subscribers.draining(rest_s)
            for queue in waiting.queues
        ),
        act=lambda pair: _retire(*pair),
        name=lambda pair: f"Retiring queue {pair[1].queue} of topic {pair[0].topic.name}",
    )


def _retire(waiting: TopicQueues, queue: QueueView) -> bool:
    """Close the queue for good, then look once more: from then on its head cannot move."""
    with sweeping.log_failure(
        f"Retiring queue {queue.queue} of topic {waiting.topic.name}"
    ):
        if _read_by(waiting.topic, queue) is None:
            return False
        try:
            queue_states.set_heads([queue.queue], state="retired")
            readers = _read_by(waiting.topic, queue)
            done = readers is not None and layout.retire(
                topic_id=waiting.topic.id, queue=queue.queue, read_by=readers
            )
        finally:
            queue_states.settle_later([queue.queue])
        if done:
            with node_pools.node(queue.node_id).reading() as session:
                queue_sql.delete_queue_readers(session, queue=queue.queue)
        return done
    return False


def _read_by(topic: TopicView, queue: QueueView) -> list[int] | None:
    """The subscriptions, if all of them have read the queue to its end; None if not."""
    reading = subscribers.active_subscriptions(topic.id)
    counts, _ = _read(reading, [queue])
    done = all(
        one.state == "ready" and _worst(counts.get((one.group, queue.queue))) == 0
        for one in reading
    )
    return [one.id for one in reading] if done else None


def drop_retired(*, after_days: float = DROP_AFTER_DAYS) -> int:
    """Drop the tables and rows of queues that were retired long enough ago; return how
    many.
    """
    return sweeping.run_each(
        (
            (waiting, queue)
            for waiting in subscribers.due_for_drop(after_days)
            for queue in waiting.queues
        ),
        act=lambda pair: _drop(*pair),
        name=lambda pair: f"Dropping the table of queue {pair[1].queue}",
    )


def _drop(waiting: TopicQueues, queue: QueueView) -> None:
    delayed_reassignment.reassign(queue.queue, topic_id=waiting.topic.id)
    with node_pools.node(queue.node_id).writing() as session:
        queue_sql.drop_queue(session, queue=queue.queue)
    layout.remove(topic_id=waiting.topic.id, queue=queue.queue)
