"""Build and drop the key indexes of topics while they are in use.

The setting `key_index` of a topic says whether its queues should have an index on the keys of
their messages; the tables of new queues have it from the start. `build` compares the setting
with the tables, and alters those that differ, one after the other. The tables are the only
record of what is done, so a run that was killed is simply repeated: a server that was killed
during an ALTER TABLE has the old table or the new one, and a server whose client died
finishes the ALTER and holds the lock of the table until then.

On MySQL and MariaDB, sends continue during the ALTER. It holds the table's metadata lock only
at its begin and its end, each time at most a second (`partitions.alter`). No partition can be
added or dropped meanwhile, so partitions for the time of the build are added before it.

Two builds let writers wait until they end, so they need `blocking`: on a Galera node, where
every server of the cluster executes the ALTER at the same time, and on SQLite, which has one
writer per file, for a queue of more than MAX_SQLITE_MESSAGES.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

from msgspec import Meta, Struct

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.heads import key_lookup, partitions
from messagestore.pool import node_pools
from messagestore.pool.node import Node
from messagestore.sweeping import Progress
from messagestore.tables import queue_sql, sql_steps
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import access, audit
from metadata.db.transactions import transactional
from metadata.errors import CatmqError
from metadata.grouping import grouped
from metadata.rules.audit_verbs import Verb
from metadata.rules.nodes import Engine
from metadata.rules.rights import ActorKind, Right
from metadata.rules.topics.states import STATES_WITHOUT_TABLE, TopicState
from metadata.rules.wire import Number
from metadata.topics import topic_rows
from metadata.topics.topic_rows import QueueView, TopicView

log = logging.getLogger(__name__)
BUILD_TIMEOUT_S = 6 * 3600  # the longest build of the index of a queue
# A build of fewer messages takes at most seconds: the usual partitions ahead suffice.
LONG_BUILD_MESSAGES = 1_000_000
BUILD_AHEAD = 2 * partitions.AHEAD
# SQLite indexes about a million keys a second, and a writer waits for the file for 10 s.
MAX_SQLITE_MESSAGES = 2_000_000
PAUSE_S = 0.1  # between two tables, because senders notice each change


class QueueIndex(Struct, frozen=True):
    """A queue, and whether its table has a key index."""

    queue: Annotated[Number, Meta(description="id of the queue")]
    number: Annotated[Number, Meta(description="its number within the topic")]
    node: str
    indexed: Annotated[
        bool | None,
        Meta(description="its table has the index; null while the node does not answer"),
    ]


class KeyIndex(Struct, frozen=True):
    """The key index of a topic. `wanted` is its setting, the queues tell what their tables
    have.
    """

    topic: str
    wanted: Annotated[bool, Meta(description="the setting key_index")]
    queues: tuple[QueueIndex, ...]

    @property
    def indexed_count(self) -> int:
        return sum(bool(queue.indexed) for queue in self.queues)

    @property
    def is_complete(self) -> bool:
        """Every table is as the setting wants it."""
        return all(queue.indexed is self.wanted for queue in self.queues)


class ChangedQueue(Struct, frozen=True):
    """A queue whose table differs from the setting of its topic, and what became of it.

    `problem`: why it was not altered, '' if it was.
    """

    topic: str
    queue: int
    node: str
    wanted: bool
    problem: str = ""
    took_s: float = 0.0


def describe(*, topic: str, actor: Actor) -> KeyIndex:
    """Return the key index of a topic. Needs any right on it.

    Raises NotFound(topic_not_found).
    """
    view = topic_rows.find_topic(name=topic, actor=actor)
    indexed: dict[int, bool] = {}

    def read(session: Session, queues: list[QueueView]) -> None:
        node_queues = queue_sql.list_key_indexes(session)
        indexed.update({queue.queue: queue.queue in node_queues for queue in queues})

    queues = [queue for queue in view.queues if queue.state not in STATES_WITHOUT_TABLE]
    sweeping.query_nodes(
        sweeping.group_by_node(queues), read, subject=f"Key indexes of topic {topic}"
    )
    return KeyIndex(
        view.name,
        view.key_index,
        tuple(
            QueueIndex(queue.queue, queue.number, queue.node, indexed.get(queue.queue))
            for queue in queues
        ),
    )


def build(
    *,
    actor: Actor,
    topic: str | None = None,
    blocking: bool = False,
    dry_run: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
) -> list[ChangedQueue]:
    """Make the key indexes of a topic, or of all topics, as their settings say. Return the
    queues whose tables differed.

    A queue that cannot be altered does not stop the others. `blocking` allows builds during
    which writers wait. Needs `manage` on the topics. Raises NotFound(topic_not_found),
    MetadataUnavailable.
    """
    topics = (
        topic_rows.list_ready()
        if topic is None
        else [topic_rows.find_topic(name=topic, actor=actor)]
    )
    for view in topics:
        access.require(actor, Right.MANAGE, view.name, what="topic")
    indexed: dict[int, set[int]] = {}

    def read(session: Session, node_id: int) -> None:
        indexed[node_id] = queue_sql.list_key_indexes(session)

    node_ids = {queue.node_id for view in topics for queue in view.queues}
    away = sweeping.query_nodes({id: id for id in node_ids}, read, subject="Key indexes")
    pending = [
        (view, queue) for view in topics for queue in _differing_queues(view, indexed)
    ]
    changes = [
        ChangedQueue(view.name, queue.queue, queue.node, view.key_index, away[queue.node])
        for view in topics
        for queue in view.queues
        if queue.node in away and queue.state not in STATES_WITHOUT_TABLE
    ]
    for done, (view, queue) in enumerate(pending):
        progress(Progress("queues with a changed key index:", done, len(pending)))
        if done and not dry_run:
            time.sleep(PAUSE_S)
        changes.append(_change_queue(view, queue, blocking=blocking, dry_run=dry_run))
    progress(Progress("queues with a changed key index:", len(pending), len(pending)))
    if not dry_run and actor.kind != ActorKind.JOB:
        for view in topics:
            queues = [
                str(c.queue) for c in changes if c.topic == view.name and not c.problem
            ]
            if queues:
                _audit_change(view, queues, actor)
    return changes


def count_pending() -> int:
    """Return the number of queues whose tables differ from the settings of their topics, and
    that can be altered without `blocking`. Nodes that do not answer are left out.

    Costs a query per node.
    """
    snapshot.refresh()
    current = snapshot.current()
    queues_by_node = grouped(
        (queue.node_id, queue)
        for queue in current.queues.values()
        if queue.state not in STATES_WITHOUT_TABLE
    )
    pending = 0
    for node_id in sweeping.online_nodes():
        with sweeping.log_failure(f"Reading the key indexes of node {node_id}"):
            node = node_pools.node(node_id)
            with node.reading() as session:
                indexed = queue_sql.list_key_indexes(session)
            for queue in queues_by_node.get(node_id, ()):
                topic = current.topics[queue.topic_id]
                if (
                    topic.state == TopicState.READY
                    and (queue.id in indexed) != topic.key_index
                    and not _find_obstacle(node, queue.id)
                ):
                    pending += 1
    return pending


@transactional
def _audit_change(topic: TopicView, queues: list[str], actor: Actor) -> None:
    after = {"key_index": topic.key_index, "queues": ", ".join(queues)}
    audit.record(actor=actor, verb=Verb.INDEX, kind="topic", name=topic.name, after=after)


def _differing_queues(topic: TopicView, indexed: Mapping[int, set[int]]) -> list[QueueView]:
    """Return the queues of a topic whose tables differ from its setting.

    `indexed` has the queues with an index of each node that answers.
    """
    return [
        queue
        for queue in topic.queues
        if queue.state not in STATES_WITHOUT_TABLE
        and queue.node_id in indexed
        and (queue.queue in indexed[queue.node_id]) != topic.key_index
    ]


def _change_queue(
    topic: TopicView, queue: QueueView, *, blocking: bool, dry_run: bool
) -> ChangedQueue:
    """Add or drop the index of a queue; an error is returned as the `problem`."""
    node = node_pools.node(queue.node_id)
    problem, began_at = "", time.monotonic()
    try:
        problem = "" if blocking else _find_obstacle(node, queue.queue)
        if not problem and not dry_run:
            _alter_table(node, queue.queue, wanted=topic.key_index)
            key_lookup.forget(queue.node_id)
    except CatmqError as error:
        problem = error.detail
    took_s = time.monotonic() - began_at
    if not dry_run:
        log.log(
            logging.WARNING if problem else logging.INFO,
            "Key index of queue %d of topic %s %s",
            queue.queue,
            topic.name,
            f"not changed: {problem}"
            if problem
            else f"{'built' if topic.key_index else 'dropped'} in {took_s:.1f} s",
        )
    return ChangedQueue(
        topic.name, queue.queue, queue.node, topic.key_index, problem, took_s
    )


def _find_obstacle(node: Node, queue: int) -> str:
    """Return why a queue may only be altered with `blocking`, '' if it may be without."""
    with node.reading() as session:
        if queue_sql.is_galera(session):
            return (
                f"Node {node.info.name} is part of a Galera cluster, where all writes wait "
                "until the index is built. Repeat it with --blocking at a quiet time"
            )
        if session.engine != Engine.SQLITE:
            return ""
        head = queue_sql.read_head(session, queue=queue)
    messages = head.head - head.low if head is not None else 0
    if messages <= MAX_SQLITE_MESSAGES:
        return ""
    return (
        f"Queue {queue} has {messages:,} messages, and all writes to its file would wait until "
        "the index is built. Repeat it with --blocking at a quiet time"
    )


def _alter_table(node: Node, queue: int, *, wanted: bool) -> None:
    """Add or drop the index of a queue's table. Raises NodeUnavailable, `db_errors.Final`."""
    act = queue_sql.add_key_index if wanted else queue_sql.drop_key_index
    if node.info.engine == Engine.SQLITE:
        with node.maintaining(timeout_s=BUILD_TIMEOUT_S) as session:
            act(session, queue=queue)
        return
    if wanted:
        with node.reading() as session:
            head = queue_sql.read_head(session, queue=queue)
        # None can be added during the build, and a send without one fails.
        if head is not None and head.head - head.low > LONG_BUILD_MESSAGES:
            partitions.extend(queue, urgent=False, ahead=BUILD_AHEAD)
    with node.maintaining(timeout_s=BUILD_TIMEOUT_S) as session:
        partitions.take_turn(session, queue=queue)
        # Read again under the lock: another run may have altered it.
        if (queue in queue_sql.list_key_indexes(session)) == wanted:
            return
        partitions.alter(
            session,
            table=sql_steps.message_table(queue),
            change=partial(act, session, queue=queue),
        )
