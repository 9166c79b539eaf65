"""Draining queues: how much of them each group has still to read; retired when nothing is left.

`layout.shrink` of metadata made them read-only and took their slots. When every subscription has
committed up to the head, `retire_drained` retires them, and three days later `drop_retired` drops
their tables.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from messagestore import sweeping, tables
from messagestore.heads.gap_check import left
from messagestore.pool import node_pools
from messagestore.produce import delayed_reassignment
from messagestore.tables import Position
from messagestore.topology import queue_states
from metadata.actors import Actor
from metadata.db import access
from metadata.errors import CatmqError, NodeUnavailable
from metadata.groups import layout, subscribers
from metadata.groups.subscribers import Reading, Waiting
from metadata.membership import instances
from metadata.topics import topic_rows
from metadata.topics.topic_rows import DROP_AFTER_DAYS, QueueView, TopicView

log = logging.getLogger(__name__)

# A queue rests so long after its last change of state: by then no client repeats a send whose first try it
# may have stored (delivery_timeout_ms is 120 s), and no broker has an older picture of it.
REST_S = 180.0

_NOBODY = ""  # reads nothing, but has bounds
Places = dict[tuple[str, int], list[Position]]  # (group, queue) → one, or one for each instance


@dataclass(frozen=True, slots=True)
class Unread:
    """Number of messages a group has not read, a broadcasting one's slowest instance; None: not known."""

    group: str
    messages: int | None


@dataclass(frozen=True, slots=True)
class QueueDrain:
    """A queue, its bounds (None while its node is away), its slots, and what is unread in it, by group.

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

    Who may not `manage` it is told only of groups on which it has a right. Raises NotFound(topic_not_found,
    queue_not_found).
    """
    view = topic_rows.named(name=topic, actor=actor)
    chosen = [one for one in view.queues if queue is None or one.queue == queue]
    if queue is not None and not chosen:
        raise layout.no_queue(topic, queue)
    reading = subscribers.readings(view.id)
    if not access.may(actor, "manage", topic):
        reading = [one for one in reading if access.sees(actor, one.group)]
    places = _places(reading, chosen)
    return [_drain(view, one, [reader.group for reader in reading], places) for one in chosen]


def _drain(topic: TopicView, queue: QueueView, groups: Sequence[str], places: Places) -> QueueDrain:
    slots = topic.layout.count(queue.queue)
    bounds = places.get((_NOBODY, queue.queue))
    return QueueDrain(
        queue=queue,
        slots=slots,
        draining=queue.state == "read_only" and slots == 0,
        low=bounds[0].low if bounds else None,
        head=bounds[0].head if bounds else None,
        unread=tuple(
            Unread(group, _worst(places.get((group, queue.queue))))
            for group in groups
            if queue.state in ("read_only", "read_write")
        ),
    )


def unread(*, topic: TopicView, queues: Sequence[QueueView]) -> tuple[Unread, ...]:
    """Count the messages that each group of the topic has not read in some queues together."""
    reading = subscribers.readings(topic.id)
    places = _places(reading, queues)
    found = []
    for one in reading:
        counts = [_worst(places.get((one.group, queue.queue))) for queue in queues]
        known = [count for count in counts if count is not None]
        found.append(Unread(one.group, sum(known) if len(known) == len(counts) else None))
    return tuple(found)


def _places(reading: Sequence[Reading], queues: Sequence[QueueView]) -> Places:
    """Read the position of every reader, and of nobody, for the bounds; nothing of a node that is away."""
    names = instances.readers_of([one.group_id for one in reading])
    readers = [(one.group, one.group_id, name) for one in reading for name in names[one.group_id]]
    by_node: dict[int, list[int]] = {}
    for queue in queues:
        by_node.setdefault(queue.node_id, []).append(queue.queue)
    found: Places = {}
    for node_id, mine in by_node.items():
        of_node: Places = {(one.group, queue): [] for one in reading for queue in mine}
        try:
            with node_pools.node(node_id).reading() as session:
                gaps = tables.read_all_gaps(session, queues=mine)
                for group, group_id, name in [(_NOBODY, 0, ""), *readers]:
                    places = tables.read_positions(session, group_id=group_id, queues=mine, instance=name)
                    for place in places.values():
                        of_node.setdefault((group, place.queue), []).append(_without(place, gaps))
            found |= of_node
        except NodeUnavailable as error:
            log.warning("How much is unread on node %d is not known: %s", node_id, error.detail)
    return found


def _without(place: Position, gaps: Mapping[int, Sequence[tuple[int, int]]]) -> Position:
    """The place, so far ahead that only what is in no declared gap is left to read."""
    if place.committed is None or place.queue not in gaps:
        return place
    unread = left(max(place.committed, place.low), place.head, gaps=gaps[place.queue])
    return place._replace(committed=place.head - unread)


def _worst(places: Sequence[Position] | None) -> int | None:
    """Number of messages that the slowest reader has left; None if one of them is not known."""
    if places is None:
        return None
    left = [_left(one) for one in places]
    known = [count for count in left if count is not None]
    return max(known, default=0) if len(known) == len(left) else None


def _left(place: Position) -> int | None:
    return None if place.committed is None else max(0, place.head - max(place.committed, place.low))


def retire_drained(*, rest_s: float = REST_S) -> int:
    """Retires the draining queues that every group has read to the end; how many. One bounded pass."""
    return sweeping.each(
        ((waiting, queue) for waiting in subscribers.draining(rest_s) for queue in waiting.queues),
        act=lambda pair: _retire(*pair),
        name=lambda pair: f"Queue {pair[1].queue} of topic {pair[0].topic.name}, which is drained,",
    )


def _retire(waiting: Waiting, queue: QueueView) -> bool:
    """Closes the queue for good, then looks once more: from then on its head cannot move."""
    try:
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
                tables.delete_queue_readers(session, queue=queue.queue)
    except CatmqError as error:
        log.warning(
            "Queue %d of topic %s is retired later: %s", queue.queue, waiting.topic.name, error.detail
        )
        return False
    return done


def _read_by(topic: TopicView, queue: QueueView) -> list[int] | None:
    """The subscriptions, if all of them have read the queue to its end; None if not."""
    reading = subscribers.readings(topic.id)
    places = _places(reading, [queue])
    done = all(one.state == "ready" and _worst(places.get((one.group, queue.queue))) == 0 for one in reading)
    return [one.id for one in reading] if done else None


def drop_retired(*, after_days: float = DROP_AFTER_DAYS) -> int:
    """Drops the tables and rows of queues that were retired long enough ago; how many."""
    return sweeping.each(
        ((waiting, queue) for waiting in subscribers.due_for_drop(after_days) for queue in waiting.queues),
        act=lambda pair: _drop(*pair),
        name=lambda pair: f"Queue {pair[1].queue}, whose table is to be dropped,",
    )


def _drop(waiting: Waiting, queue: QueueView) -> None:
    delayed_reassignment.reassign(queue.queue, topic_id=waiting.topic.id)
    with node_pools.node(queue.node_id).writing() as session:
        tables.drop_queue(session, queue=queue.queue)
    layout.remove(topic_id=waiting.topic.id, queue=queue.queue)
