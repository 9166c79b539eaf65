"""Build and drop the key indexes of topics while they are in use.

The setting `key_index` of a topic says whether its queues should have an index on the keys of
their messages. The tables of new queues have it from the start. `build` alters the tables of
the other queues, one after the other.

    lock of the table → state `changing` → ALTER TABLE → each partition checked → `ready`

The state is a column of the queue in metadata (metadata/topics/key_index_rows.py), and searches
rely on `ready` only. A run that was killed, or whose server was, leaves `changing`, and the next
run begins again with the table as it is. The table may be inconsistent: MariaDB 10.11 does not
recover an ALTER TABLE of a partitioned table as a whole. After kill -9 of the server,

- ADD INDEX may leave the index in the definition, and partitions without it. Reads by the index
  fail (1030), the other reads and all writes work. ADD INDEX says that it exists (1061), DROP
  INDEX is refused (1846), and CHECK TABLE finds nothing.
- DROP INDEX may leave the index in partitions, but not in the definition. Writers still
  maintain it, and ADD INDEX is refused (1846).

REBUILD PARTITION gives a partition the indexes of the definition in either case. Writers of the
queue wait for it, about 0.2 s for 30,000 messages.

On MySQL and MariaDB, sends continue during the ALTER. It holds the table's metadata lock only
at its begin and its end, each time at most a second (`partitions.alter`). No partition can be
added or dropped meanwhile, so partitions for the time of the build are added before it. A
server whose client died finishes the ALTER, and holds the lock of the table until then.

Two builds let writers wait until they end, so they need `blocking`: on a Galera node, where
every server of the cluster executes the ALTER at the same time, and on SQLite, which has one
writer per file, for a queue of more than MAX_SQLITE_MESSAGES.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

from msgspec import Meta, Struct

from messagestore import sweeping
from messagestore.engine import db_errors
from messagestore.engine.mysql_session import MySqlSession, Session
from messagestore.heads import partitions
from messagestore.pool import node_pools
from messagestore.pool.node import Node
from messagestore.sweeping import Progress
from messagestore.tables import partition_sql, queue_sql, sql_steps
from metadata.actors import Actor
from metadata.db import access, audit
from metadata.db.transactions import transactional
from metadata.errors import CatmqError, NodeUnavailable
from metadata.rules.audit_verbs import Verb
from metadata.rules.nodes import Engine
from metadata.rules.rights import ActorKind, Right
from metadata.rules.topics.states import STATES_WITHOUT_TABLE, KeyIndexState
from metadata.rules.wire import Number
from metadata.topics import key_index_rows, topic_rows
from metadata.topics.key_index_rows import IndexChange
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
    """A queue, and the state of its key index."""

    queue: Annotated[Number, Meta(description="id of the queue")]
    number: Annotated[Number, Meta(description="its number within the topic")]
    node: str
    key_index: Annotated[
        str,
        Meta(
            description="`ready`: searches use it; `changing`: it is built or dropped, or a "
            "run that did so was interrupted; `none`"
        ),
    ]


class KeyIndex(Struct, frozen=True):
    """The key index of a topic: its setting, and the state of each queue."""

    topic: str
    wanted: Annotated[bool, Meta(description="the setting key_index")]
    queues: tuple[QueueIndex, ...]

    @property
    def ready_count(self) -> int:
        return sum(queue.key_index == KeyIndexState.READY for queue in self.queues)


class ChangedQueue(Struct, frozen=True):
    """A queue whose table was altered or checked, and the result.

    `problem`: why it was not altered, '' if it was. `rebuilt`: the partitions that an
    interrupted run had left without the index, or with it.
    """

    topic: str
    queue: int
    node: str
    wanted: bool
    problem: str = ""
    took_s: float = 0.0
    rebuilt: int = 0


def describe(*, topic: str, actor: Actor) -> KeyIndex:
    """Return the key index of a topic. Needs any right on it.

    Raises NotFound(topic_not_found).
    """
    view = topic_rows.find_topic(name=topic, actor=actor)
    return KeyIndex(
        view.name,
        view.key_index,
        tuple(
            QueueIndex(queue.queue, queue.number, queue.node, queue.key_index)
            for queue in _queues_with_table(view)
        ),
    )


def build(
    *,
    actor: Actor,
    topic: str | None = None,
    blocking: bool = False,
    check: bool = False,
    dry_run: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
) -> list[ChangedQueue]:
    """Make the key indexes of a topic, or of all topics, as their settings say. Return the
    queues whose state differed, all queues with `check`.

    A queue that cannot be altered does not stop the others. `blocking` allows builds during
    which writers wait. `check` looks into the tables of queues that are `ready`, too, as it is
    needed after a node was restored. Needs `manage` on the topics. Raises
    NotFound(topic_not_found), MetadataUnavailable.
    """
    topics = (
        topic_rows.list_ready()
        if topic is None
        else [topic_rows.find_topic(name=topic, actor=actor)]
    )
    for view in topics:
        access.require(actor, Right.MANAGE, view.name, what="topic")
    pending = [
        (view, queue)
        for view in topics
        for queue in _queues_with_table(view)
        if check or queue.key_index != _wanted_state(view)
    ]
    changes = []
    for done, (view, queue) in enumerate(pending):
        progress(Progress("queues with a changed key index:", done, len(pending)))
        if done and not dry_run:
            time.sleep(PAUSE_S)
        changes.append(_change_queue(view, queue, blocking=blocking, dry_run=dry_run))
    progress(Progress("queues with a changed key index:", len(pending), len(pending)))
    # Changes that the job makes were audited as a change of the topic's setting.
    if not dry_run and actor.kind != ActorKind.JOB:
        for view in topics:
            queues = [
                str(c.queue) for c in changes if c.topic == view.name and not c.problem
            ]
            if queues:
                _audit_change(view, queues, actor)
    return changes


def count_pending() -> int:
    """Return the number of queues whose key index differs from the setting of their topics, and
    that can be altered without `blocking`. Nodes that do not answer are left out.
    """
    pending = 0
    for queue in key_index_rows.list_pending():
        with sweeping.log_failure(f"Reading queue {queue} before its key index is changed"):
            if not _find_obstacle(node_pools.node_of(queue), queue):
                pending += 1
    return pending


def _queues_with_table(topic: TopicView) -> list[QueueView]:
    return [queue for queue in topic.queues if queue.state not in STATES_WITHOUT_TABLE]


def _wanted_state(topic: TopicView) -> KeyIndexState:
    return KeyIndexState.READY if topic.key_index else KeyIndexState.NONE


@transactional
def _audit_change(topic: TopicView, queues: list[str], actor: Actor) -> None:
    after = {"key_index": topic.key_index, "queues": ", ".join(queues)}
    audit.record(actor=actor, verb=Verb.INDEX, kind="topic", name=topic.name, after=after)


def _change_queue(
    topic: TopicView, queue: QueueView, *, blocking: bool, dry_run: bool
) -> ChangedQueue:
    """Add or drop the index of a queue; an error is returned as the `problem`."""
    problem, rebuilt, began_at = "", 0, time.monotonic()
    try:
        node = node_pools.node(queue.node_id)
        problem = "" if blocking else _find_obstacle(node, queue.queue)
        if not problem and not dry_run:
            rebuilt = _change_table(node, queue.queue, wanted=topic.key_index)
    except CatmqError as error:
        problem = error.detail
    took_s = time.monotonic() - began_at
    if not dry_run:
        log.log(
            logging.WARNING if problem or rebuilt else logging.INFO,
            "Key index of queue %d of topic %s %s",
            queue.queue,
            topic.name,
            f"not changed: {problem}"
            if problem
            else f"{'built' if topic.key_index else 'dropped'} in {took_s:.1f} s"
            + (f", {rebuilt} partitions rebuilt" if rebuilt else ""),
        )
    return ChangedQueue(
        topic.name, queue.queue, queue.node, topic.key_index, problem, took_s, rebuilt
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


def _change_table(node: Node, queue: int, *, wanted: bool) -> int:
    """Alter the table of a queue as its topic wants it now, and record the result. Return the
    number of partitions that had to be rebuilt.

    `wanted` is the setting as the caller has read it. Raises NodeUnavailable, OutcomeUnknown,
    `db_errors.Final`.
    """
    is_partitioned = node.info.engine != Engine.SQLITE
    if wanted and is_partitioned:
        with node.reading() as session:
            head = queue_sql.read_head(session, queue=queue)
        # None can be added during the build, and a send without one fails.
        if head is not None and head.head - head.low > LONG_BUILD_MESSAGES:
            partitions.extend(queue, urgent=False, ahead=BUILD_AHEAD)
    with node.maintaining(timeout_s=BUILD_TIMEOUT_S) as session:
        if is_partitioned:
            partitions.take_turn(session, queue=queue)
        # Searches stop using the index before it is altered.
        change = key_index_rows.begin_change(queue=queue)
        if change is None:
            return 0
        rebuilt = _alter_table(session, queue, change)
        # The lock is still held: no other run can have altered the table since.
        key_index_rows.end_change(queue=queue, indexed=change.wanted)
    return rebuilt


def _alter_table(session: Session, queue: int, change: IndexChange) -> int:
    """Add or drop the index, and rebuild partitions that an interrupted run left different
    from the table's definition. Return how many.
    """
    act = queue_sql.add_key_index if change.wanted else queue_sql.drop_key_index
    step = partial(act, session, queue=queue)
    is_defined = queue_sql.has_key_index(session, queue=queue)
    is_mariadb = isinstance(session, MySqlSession) and session.flavour == "mariadb"
    rebuilt = 0
    if is_defined and not change.wanted:
        # DROP INDEX is refused while a partition lacks the index.
        lacking = partition_sql.find_partitions_without_index(session, queue=queue)
        rebuilt += _rebuild(session, queue, lacking)
    if is_defined != change.wanted:
        try:
            _alter(session, queue, step)
        except db_errors.NotInPlace:
            if not (change.wanted and change.interrupted):
                raise
            # Partitions still have the index of a DROP INDEX that was interrupted.
            rebuilt += _rebuild_all(session, queue)
            _alter(session, queue, step)
    elif not change.wanted and change.interrupted and is_mariadb:
        # No statement shows whether partitions still have the index, which writers maintain.
        rebuilt += _rebuild_all(session, queue)
    if change.wanted:
        lacking = partition_sql.find_partitions_without_index(session, queue=queue)
        rebuilt += _rebuild(session, queue, lacking)
        if lacking and partition_sql.find_partitions_without_index(session, queue=queue):
            raise NodeUnavailable(
                f"Partitions {', '.join(lacking)} of {sql_steps.message_table(queue)} lack "
                "the key index although they were rebuilt."
            )
    return rebuilt


def _rebuild_all(session: Session, queue: int) -> int:
    names = [p.name for p in partition_sql.list_partitions(session, queue=queue)]
    return _rebuild(session, queue, names)


def _rebuild(session: Session, queue: int, names: Sequence[str]) -> int:
    """Rebuild partitions, one at a time so that writers get in between. Return how many."""
    for name in names:
        rebuild = partial(partition_sql.rebuild_partition, session, queue=queue, name=name)
        _alter(session, queue, rebuild)
    return len(names)


def _alter(session: Session, queue: int, act: Callable[[], object]) -> None:
    if session.engine == Engine.SQLITE:
        act()
    else:
        partitions.alter(session, table=sql_steps.message_table(queue), change=act)
