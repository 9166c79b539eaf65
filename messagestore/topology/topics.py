"""Topics with their tables: rows in state creating, then tables, then ready; and backwards.

Whatever a crash leaves in between is finished or removed by `sweep`; tables of a deleted
topic are dropped by `drop_deleted` when their days of grace are over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.pool import node_pools
from messagestore.produce import delayed_reassignment
from messagestore.tables import queue_sql, reader_sql
from metadata.actors import Actor, job
from metadata.errors import CatmqError, Conflict
from metadata.topics import topic_rows
from metadata.topics.topic_rows import QueueView, TopicView

UNFINISHED_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue of a topic and its bounds; `low` and `head` are None while its node does not
    answer.
    """

    queue: QueueView
    low: int | None = None
    head: int | None = None


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic and its queues in order of number."""

    topic: TopicView
    queues: tuple[QueueState, ...]


def create(
    *,
    name: str,
    queues: int,
    actor: Actor,
    node: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> TopicState:
    """Make a topic with its tables; ready when this returns. Needs `manage`.

    Raises what `metadata.topics.topic_rows.plan_topic` raises; QueuesTaken and NodeUnavailable
    after taking back what was made.
    """
    planned = topic_rows.plan_topic(
        name=name, queues=queues, node=node, settings=settings, actor=actor
    )
    try:
        make_tables(planned.queues, topic=planned.name)
        ready = topic_rows.make_ready(planned.id)
    except CatmqError:
        _take_back(planned, actor)
        raise
    return _state(ready)


class QueuesTaken(Conflict):
    """New `queues` have ids of earlier ones, whose messages are still there; their tables
    are not touched.
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
    """Make the tables of a topic's queues; harmless where they exist. Raises QueuesTaken,
    NodeUnavailable.
    """
    used = []
    for node_id, mine in sweeping.group_by_node(queues).items():
        node = node_pools.node(node_id)
        with node.reading() as session:  # harmless to repeat, so nothing is in doubt
            for queue in mine:
                new = {"queue": queue.queue, "node_epoch": node.info.epoch}
                comment = f"topic {topic}, queue number {queue.number}"
                if not queue_sql.create_queue(session, **new, unused=True, comment=comment):
                    used.append(queue.queue)
    # Those that another process opened meanwhile may have messages by now.
    if taken := topic_rows.queues_in_creation(used):
        raise QueuesTaken(taken)


def _take_back(topic: TopicView, actor: Actor) -> None:
    with sweeping.log_failure(f"Removal of the unfinished topic {topic.name}"):
        if topic_rows.abandon(topic.id, actor):
            _drop(topic, actor)


def describe(*, name: str, actor: Actor) -> TopicState:
    """A topic and the bounds of its queues. Needs any right on it; raises NotFound
    (topic_not_found).
    """
    return _state(topic_rows.find_topic(name=name, actor=actor))


def _state(topic: TopicView) -> TopicState:
    states = {queue.queue: QueueState(queue) for queue in topic.queues}

    def read(session: Session, queues: Sequence[QueueView]) -> None:
        ids = [one.queue for one in queues]
        for queue, at in reader_sql.read_positions(session, group_id=0, queues=ids).items():
            states[queue] = replace(states[queue], low=at.low, head=at.head)

    sweeping.query_nodes(
        sweeping.group_by_node(topic.queues), read, subject=f"Queues of topic {topic.name}"
    )
    return TopicState(topic, tuple(states.values()))


def delete(*, name: str, confirm: str | None, actor: Actor) -> None:
    """Close a topic for good: its name is free at once, its tables go after three days.
    Needs `manage`.

    Raises what `mark_deleted` of metadata raises. Metadata goes first here: a topic that is
    gone from metadata cannot be sent to, and its rows in flight lie in tables that nobody
    reads any more.
    """
    topic_rows.mark_deleted(name=name, confirm=confirm, actor=actor)


def sweep(older_than_s: float = UNFINISHED_AFTER_S) -> int:
    """Take back the topics whose creation a crash left half done; return how many it looked
    at.
    """
    return sweeping.run_each(
        topic_rows.iterate_unfinished(older_than_s),
        act=lambda topic: _take_back(topic, job("topics")),
        name=lambda topic: f"Removal of the unfinished topic {topic.name}",
    )


def drop_deleted(after_days: float = topic_rows.DROP_AFTER_DAYS) -> int:
    """Drop the tables and rows of topics deleted long enough ago; return how many."""
    return sweeping.run_each(
        topic_rows.iterate_due_for_drop(after_days),
        act=lambda topic: _drop(topic, job("topics")),
        name=lambda topic: f"Dropping the tables of topic {topic.name}",
    )


def _drop(topic: TopicView, actor: Actor) -> None:
    """Drop the tables, then the rows, of a topic that is deleted for good.

    One that was never ready has no messages: if there are any, the table is not its own
    (QueuesTaken).
    """
    was_ready = topic.layout_version > 0
    for node_id, queues in sweeping.group_by_node(topic.queues).items():
        with node_pools.node(node_id).writing() as session:
            for queue in queues:
                queue_sql.drop_queue(session, queue=queue.queue, unused=not was_ready)
    for queue in topic.queues:
        delayed_reassignment.drop(queue.queue)
    topic_rows.remove(topic.id, actor)
