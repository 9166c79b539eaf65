"""Topics with their tables: rows in state creating, then tables, then state ready.

`sweep` finishes or removes what a crash left in between. `drop_deleted` drops the tables of
a deleted topic after the days of grace.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.pool import node_pools
from messagestore.produce import delayed_reassignment
from messagestore.tables import queue_sql, reader_sql
from metadata.actors import Actor, job
from metadata.errors import CatmqError, Conflict
from metadata.rules.topics.states import KeyIndexState
from metadata.topics import topic_rows
from metadata.topics.topic_rows import QueueView, TopicView

UNFINISHED_AFTER_S = 60.0


class QueueBounds(Struct, frozen=True):
    """A queue and its bounds; `low` and `head` are None while its node is unreachable."""

    queue: QueueView
    low: int | None = None
    head: int | None = None


class TopicBounds(Struct, frozen=True):
    topic: TopicView
    queues: tuple[QueueBounds, ...]


def create(
    *,
    name: str,
    queues: int,
    actor: Actor,
    node: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> TopicBounds:
    """Create a topic with its tables; ready when this returns. Needs `manage`.

    Raises what `metadata.topics.topic_rows.plan_topic` raises. QueuesTaken and
    NodeUnavailable are raised after a rollback.
    """
    planned = topic_rows.plan_topic(
        name=name, queues=queues, node=node, settings=settings, actor=actor
    )
    try:
        make_tables(planned.queues, topic=planned.name)
        ready = topic_rows.make_ready(planned.id)
    except CatmqError:
        _roll_back(planned, actor)
        raise
    return _read_state(ready)


class QueuesTaken(Conflict):
    """New `queues` have the ids of earlier queues whose messages are still on the nodes.

    The tables of those are not touched.
    """

    def __init__(self, queues: Collection[int]) -> None:
        super().__init__(
            f"Nodes hold messages of earlier queues {', '.join(map(str, sorted(queues)))}, "
            "so metadata was "
            "restored from an older backup. Run manage.py restore_check FILE --raise-ids, "
            "with the file of "
            "that backup or a new one of manage.py backup_mark; then repeat this."
        )
        self.queues = queues


def make_tables(queues: Sequence[QueueView], *, topic: str) -> None:
    """Create the tables of queues, unless they exist and are empty.

    Raises QueuesTaken and NodeUnavailable.
    """
    used_ids = []
    for node_id, node_queues in sweeping.group_by_node(queues).items():
        node = node_pools.node(node_id)
        # A repeat changes nothing, so a lost connection is not an unknown outcome.
        with node.reading() as session:
            for queue in node_queues:
                if not queue_sql.create_queue(
                    session,
                    queue=queue.queue,
                    node_epoch=node.info.epoch,
                    unused=True,
                    comment=f"topic {topic}, queue number {queue.number}",
                    # As the row says, not the topic: its setting may have changed since.
                    key_index=queue.key_index == KeyIndexState.READY,
                ):
                    used_ids.append(queue.queue)
    # A queue that another process has made ready meanwhile may hold messages rightly.
    if taken_ids := topic_rows.queues_in_creation(used_ids):
        raise QueuesTaken(taken_ids)


def _roll_back(topic: TopicView, actor: Actor) -> None:
    """Remove an unfinished topic; a failure is left to the sweep."""
    with sweeping.log_failure(f"Removal of the unfinished topic {topic.name}"):
        if topic_rows.abandon(topic.id, actor):
            _drop(topic, actor)


def describe(*, name: str, actor: Actor) -> TopicBounds:
    """Return a topic and the bounds of its queues. Needs any right on it.

    Raises NotFound(topic_not_found).
    """
    return _read_state(topic_rows.find_topic(name=name, actor=actor))


def _read_state(topic: TopicView) -> TopicBounds:
    states = {queue.queue: QueueBounds(queue) for queue in topic.queues}

    def read(session: Session, queues: Sequence[QueueView]) -> None:
        for queue_id, position in reader_sql.read_positions(
            session, group_id=0, queues=[queue.queue for queue in queues]
        ).items():
            states[queue_id] = structs.replace(
                states[queue_id], low=position.low, head=position.head
            )

    sweeping.query_nodes(
        sweeping.group_by_node(topic.queues), read, subject=f"Queues of topic {topic.name}"
    )
    return TopicBounds(topic, tuple(states.values()))


def delete(*, name: str, confirm: str | None, actor: Actor) -> None:
    """Delete a topic: its name is free at once, its tables are dropped after three days.

    Needs `manage`. Raises what `mark_deleted` in metadata raises.
    """
    # Metadata first: nothing can be sent to a topic that is gone there, and a message in
    # flight is stored in a table that has no readers any more.
    topic_rows.mark_deleted(name=name, confirm=confirm, actor=actor)


def sweep(older_than_s: float = UNFINISHED_AFTER_S) -> int:
    """Remove topics whose creation a crash interrupted. Returns how many were checked."""
    return sweeping.run_each(
        topic_rows.iterate_unfinished(older_than_s),
        act=lambda topic: _roll_back(topic, job("topics")),
        name=lambda topic: f"Removal of the unfinished topic {topic.name}",
    )


def drop_deleted(after_days: float = topic_rows.DROP_AFTER_DAYS) -> int:
    """Drop tables and rows of topics deleted long enough ago. Returns how many."""
    return sweeping.run_each(
        topic_rows.iterate_due_for_drop(after_days),
        act=lambda topic: _drop(topic, job("topics")),
        name=lambda topic: f"Dropping the tables of topic {topic.name}",
    )


def _drop(topic: TopicView, actor: Actor) -> None:
    """Drop the tables, then the rows, of a topic that is deleted for good.

    Raises QueuesTaken for a topic that was never ready and has messages: the table belongs
    to an earlier queue with the same id.
    """
    was_ready = topic.layout_version > 0
    for node_id, queues in sweeping.group_by_node(topic.queues).items():
        with node_pools.node(node_id).writing() as session:
            for queue in queues:
                queue_sql.drop_queue(session, queue=queue.queue, unused=not was_ready)
    for queue in topic.queues:
        delayed_reassignment.drop(queue.queue)
    topic_rows.remove(topic.id, actor)
