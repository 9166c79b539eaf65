"""Read plans: tables and offsets of a topic, for jobs that read directly from the nodes.

A plan names tables, the offsets to read in them, and an account of each node that can only
read. That account reads every topic of its node, so only an actor with `admin` on
everything gets it. An actor with `admin` on the topic gets the plan without accounts, and
its job brings an account that the database limits to these tables. Heads are durable: a
crash removes nothing that a plan covers. A job may read for hours, so it checks
`queue_head` and `queue_gap` of the node, as a pull does, that it skipped nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from messagestore import sweeping
from messagestore.heads import durability
from messagestore.pool import node_guard, node_pools, session_pool, writers
from messagestore.tables import promotion_sql, queue_sql, sql_steps
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import access
from metadata.errors import Invalid, NodeUnavailable, StoreCorrupt
from metadata.nodes import node_rows
from metadata.nodes.node_rows import ReaderAccount
from metadata.rules.nodes import Engine
from metadata.rules.rights import Right
from metadata.rules.topics.states import STATES_WITHOUT_TABLE
from metadata.rules.wire import Number
from metadata.topics import topic_rows
from metadata.topics.topic_rows import QueueView

_NO_ACCOUNT = ReaderAccount("", "")
# queues in these states may have no table


class PlannedNode(Struct, frozen=True):
    """A node; user name and password are empty without a reader account, or without `admin`
    on `*`.
    """

    name: str
    engine: str
    host: str
    port: Number
    database: Annotated[
        str, Meta(description="the schema on mysql, the file's path on sqlite")
    ]
    # It is also in the node's database: an archive records by it whose messages it has.
    identity: Annotated[str, Meta(description="identity of the node's data")]
    min_release: Annotated[
        str,
        Meta(
            description="oldest release of CatMQ whose jobs can read its tables; empty: any"
        ),
    ]
    username: str
    password: str
    tls: str
    tls_ca: str

    def __repr__(self) -> str:
        # Without the password: the text may get into a log.
        return f"PlannedNode(name={self.name!r}, host={self.host!r})"


class PlannedQueue(Struct, frozen=True):
    """A queue. Readable are the offsets from `low` (log start) to `head` - 1 (log end),
    without gaps.
    """

    queue: Annotated[Number, Meta(description="id of the queue")]
    number: Annotated[Number, Meta(description="its number within the topic")]
    node: str
    table: str
    low: Number
    head: Annotated[Number, Meta(description="durable log end offset")]
    gaps: Annotated[
        tuple[Sequence[Number], ...],
        Meta(description="lost offsets: from, to (excluded)"),
    ]


class ReadPlan(Struct, frozen=True):
    """Queues and nodes of a topic's messages."""

    topic: str
    queues: tuple[PlannedQueue, ...]
    nodes: tuple[PlannedNode, ...]


def read_plan(
    *, topic: str, actor: Actor, queues: Collection[int] | None = None
) -> ReadPlan:
    """Return the read plan of a topic, or of some of its queues. Needs `admin` on the
    topic.

    With `admin` on everything it includes the nodes' reader accounts. Raises
    NotFound(topic_not_found), Invalid, NodeUnavailable if a node of these queues does not
    answer, StoreCorrupt.
    """
    access.require(actor, Right.ADMIN, topic)
    access.require_failure_origin(actor, Right.ADMIN, topic, snapshot.origin_of(topic))
    view = topic_rows.find_topic(name=topic, actor=actor)
    views = {queue.queue: queue for queue in view.queues}
    for unknown_queue in (queue for queue in queues or () if queue not in views):
        own_queues = ", ".join(map(str, views))
        raise Invalid.field(
            "queues",
            f"{unknown_queue} is not a queue of topic {topic}; its queues are {own_queues}",
        )
    by_node = sweeping.group_by_node(
        list(view.queues) if queues is None else [views[q] for q in sorted(set(queues))]
    )
    planned = [
        queue
        for node_id, node_queues in by_node.items()
        for queue in _plan_queues(node_id, node_queues)
    ]
    accounts = node_rows.reader_accounts(by_node) if access.may_everything(actor) else {}
    nodes = []
    for node_id in by_node:
        # Spark reads from one server, that which brokers write to.
        info = writers.at_writer(node_pools.node(node_id).info)
        account = accounts.get(node_id, _NO_ACCOUNT)
        schema = node_guard.schema(info)  # `_plan_queues` has just queried the node
        database = (
            str(session_pool.sqlite_path(info.database))
            if info.engine == Engine.SQLITE
            else info.database
        )
        nodes.append(
            PlannedNode(
                name=info.name,
                engine=info.engine,
                host=info.host,
                port=info.port,
                database=database,
                identity=info.identity,
                min_release=schema.min_release if schema is not None else "",
                username=account.username,
                password=account.password,
                tls=info.tls,
                tls_ca=info.tls_ca,
            )
        )
    return ReadPlan(
        topic=topic,
        queues=tuple(sorted(planned, key=lambda queue: queue.number)),
        nodes=tuple(sorted(nodes, key=lambda node: node.name)),
    )


def _plan_queues(node_id: int, queues: list[QueueView]) -> list[PlannedQueue]:
    """Return the planned queues of a node, with heads that are durable.

    Raises NodeUnavailable, StoreCorrupt.
    """
    ids = [view.queue for view in queues]
    node = node_pools.node(node_id)
    # A quarantined node may hold the data of another node.
    if node.info.quarantined:
        raise NodeUnavailable(
            f"Node {node.info.name} is quarantined: {node.info.quarantined}"
        )
    with node.reading() as session:
        heads = {
            queue: head
            for queue in ids
            if (head := queue_sql.read_head(session, queue=queue)) is not None
        }
        gaps = promotion_sql.read_all_gaps(session, queues=ids)
    for view in queues:
        if view.queue not in heads and view.state not in STATES_WITHOUT_TABLE:
            raise StoreCorrupt(
                f"Queue {view.queue} has no row in queue_head on node {node.info.name}."
            )
    # A head that is not on disk yet could fall back in a crash, and its offsets get other
    # messages.
    durability.confirm(
        node_id=node_id, heads={queue: head.head for queue, head in heads.items()}
    )
    return [
        PlannedQueue(
            queue=view.queue,
            number=view.number,
            node=view.node,
            table=sql_steps.message_table(view.queue),
            low=heads[view.queue].low,
            head=heads[view.queue].head,
            gaps=tuple(gaps.get(view.queue, ())),
        )
        for view in queues
        if view.queue in heads
    ]
