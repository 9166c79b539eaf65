"""Read plans: where a topic's messages lie, for jobs that read straight from the nodes.

A plan names tables, the offsets in them that may be read, and an account of each node that
can only read. That account reads every topic of its node, so only who has `admin` on
everything is told it. A right on one topic gets the plan without accounts: its job brings
one that the database itself limits to these tables. Heads are durable: what a plan covers
is not taken back by a crash. A job may read for hours, so it proves by
`queue_head` and `queue_gap` of the node, as a pull does, that it skipped nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from messagestore import sweeping
from messagestore.heads import durability
from messagestore.pool import node_guard, node_pools, session_pool
from messagestore.tables import promotion_sql, queue_sql, sql_steps
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import access
from metadata.errors import Invalid, NodeUnavailable, StoreCorrupt
from metadata.nodes import node_rows
from metadata.nodes.node_rows import ReaderAccount
from metadata.topics import topic_rows
from metadata.topics.topic_rows import QueueView, TopicView

_NO_ACCOUNT = ReaderAccount("", "")
# their tables may not be there yet, or not any more
_WITHOUT_TABLE = ("creating", "retired")


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A node as jobs reach it; `username` is empty if it has no reader account, or the
    actor may not have it.

    `identity` stands in its database too: by it an archive knows whose messages it holds.
    `min_release` is
    the oldest release whose jobs can read its tables, '' if all can.
    """

    name: str
    engine: str
    host: str
    port: int
    database: str
    identity: str
    min_release: str
    username: str
    password: str = field(repr=False)
    tls: str = "off"
    tls_ca: str = ""


@dataclass(frozen=True, slots=True)
class PlannedQueue:
    """A queue: its table and node, and the offsets `low` … `head` - 1 without the declared
    `gaps`.
    """

    queue: int
    number: int
    node: str
    table: str
    low: int
    head: int
    gaps: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A topic, its queues by number, and the nodes that these are on."""

    topic: str
    queues: tuple[PlannedQueue, ...]
    nodes: tuple[PlannedNode, ...]


def read_plan(
    *, topic: str, actor: Actor, queues: Collection[int] | None = None
) -> ReadPlan:
    """The read plan of a topic, or of some of its queues. Needs `admin` on it.

    With `admin` on everything it holds the nodes' reader accounts. Raises
    NotFound(topic_not_found), Invalid, NodeUnavailable if a node of these queues does not
    answer, StoreCorrupt.
    """
    access.require(actor, "admin", topic)
    access.require_failure_origin(actor, "admin", topic, snapshot.origin_of(topic))
    found = topic_rows.find_topic(name=topic, actor=actor)
    by_node = sweeping.group_by_node(_chosen(found, queues))
    planned = [one for node_id, mine in by_node.items() for one in _queues(node_id, mine)]
    accounts = node_rows.reader_accounts(by_node) if access.may_everything(actor) else {}
    places = [_place(node_id, accounts.get(node_id, _NO_ACCOUNT)) for node_id in by_node]
    return ReadPlan(
        topic=topic,
        queues=tuple(sorted(planned, key=lambda one: one.number)),
        nodes=tuple(sorted(places, key=lambda one: one.name)),
    )


def _chosen(topic: TopicView, queues: Collection[int] | None) -> list[QueueView]:
    if queues is None:
        return list(topic.queues)
    known = {one.queue: one for one in topic.queues}
    for queue in queues:
        if queue not in known:
            mine = ", ".join(map(str, known))
            what = f"{queue} is not a queue of topic {topic.name}; its queues are {mine}"
            raise Invalid.field("queues", what)
    return [known[queue] for queue in sorted(set(queues))]


def _queues(node_id: int, queues: list[QueueView]) -> list[PlannedQueue]:
    """The queues of one node, with heads that are on its disk."""
    ids = [one.queue for one in queues]
    node = node_pools.node(node_id)
    if node.info.quarantined:
        raise NodeUnavailable(
            f"Node {node.info.name} is quarantined: {node.info.quarantined}"
        )
    with node.reading() as session:
        heads = {queue: queue_sql.read_head(session, queue=queue) for queue in ids}
        gaps = promotion_sql.read_all_gaps(session, queues=ids)
    known = {queue: head for queue, head in heads.items() if head is not None}
    missing = [one for one in queues if one.queue not in known]
    for one in missing:
        if one.state not in _WITHOUT_TABLE:
            raise StoreCorrupt(
                f"Queue {one.queue} has no row in queue_head on node {node.info.name}."
            )
    durability.confirm(
        node_id=node_id, heads={queue: head.head for queue, head in known.items()}
    )
    return [
        PlannedQueue(
            queue=one.queue,
            number=one.number,
            node=one.node,
            table=sql_steps.message_table(one.queue),
            low=known[one.queue].low,
            head=known[one.queue].head,
            gaps=tuple(gaps.get(one.queue, ())),
        )
        for one in queues
        if one not in missing
    ]


def _place(node_id: int, account: ReaderAccount) -> PlannedNode:
    info = node_pools.node(node_id).info
    embedded = info.engine == "sqlite"
    found = node_guard.schema(info)  # `_queues` has just asked the node
    return PlannedNode(
        name=info.name,
        engine=info.engine,
        host=info.host,
        port=info.port,
        database=str(session_pool.sqlite_path(info.database))
        if embedded
        else info.database,
        identity=info.identity,
        min_release=found.min_release if found is not None else "",
        username=account.username,
        password=account.password,
        tls=info.tls,
        tls_ca=info.tls_ca,
    )
