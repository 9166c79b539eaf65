"""Compare the contents of a node with metadata (tables, head rows, positions), and check
metadata itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.pool import session_pool
from messagestore.tables import audit_sql, promotion_sql, queue_sql
from messagestore.tables.shapes import ReaderRow
from messagestore.verify.findings import KINDS, Finding
from metadata.brokers import snapshot_acks
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.groups import expected_state, retry_topic_rows
from metadata.groups.expected_state import ExpectedQueue, ExpectedState
from metadata.monitoring.health_checks import list_ids


@dataclass(slots=True)
class Contents:
    """Contents of a node. `identity` is read from its database.

    `tables` are queue ids of message tables; `empty` are those of `tables` that belong to no
    queue of metadata and hold no message. `heads` are log end offsets by queue id.
    """

    info: NodeInfo
    identity: str = ""
    tables: frozenset[int] = frozenset()
    empty: frozenset[int] = frozenset()
    heads: dict[int, int] = field(default_factory=dict)
    readers: list[ReaderRow] = field(default_factory=list)


def read_contents(info: NodeInfo) -> Contents:
    """Read a node's contents, even if brokers do not serve it. Raises NodeUnavailable,
    db_errors.Final.
    """
    with session_pool.direct(info) as session:
        node_contents = Contents(info)
        try:
            node_contents.identity = promotion_sql.read_identity(session)
        except db_errors.Final:
            node_contents.identity = ""  # the table of identities is missing
        # Another node's database: nothing else in it can be compared.
        if info.identity and node_contents.identity != info.identity:
            return node_contents
        node_contents.readers = audit_sql.list_all_readers(session)
        node_contents.heads = queue_sql.read_heads(session, queues=None)
        node_contents.tables = frozenset(audit_sql.list_message_tables(session))
        unknown = sorted(node_contents.tables - snapshot.current().queues.keys())
        node_contents.empty = frozenset(
            queue for queue in unknown if is_empty(session, queue)
        )
        return node_contents


def is_empty(session: Session, queue: int) -> bool:
    return audit_sql.read_offset_ends(session, queue=queue, first=0) == (None, None)


def check_node(node_contents: Contents, expected: ExpectedState) -> Iterator[Finding]:
    """Yield the findings on a node."""
    info = node_contents.info
    if info.identity and node_contents.identity != info.identity:
        detail = (
            f"its identity is {node_contents.identity or '(none)'}, not {info.identity}"
        )
        yield Finding("identity_differs", f"node {info.name}", detail, node=info.id)
        return
    for queue in expected.queues.values():
        if queue.node_id == info.id and not queue.gone:
            yield from _check_queue(queue, node_contents)
    # Tables and head rows that belong to no queue. Registration tries rights with queue 0.
    expected_ids = expected.queues.keys() | expected.creating | {0}
    for queue_id in sorted(node_contents.tables - expected_ids):
        head = node_contents.heads.get(queue_id, 0)
        is_empty_table = queue_id in node_contents.empty
        detail = "it is empty" if is_empty_table else "it holds messages"
        detail += "" if head == 0 else f"; its log end offset was {head}"
        yield Finding(
            "table_unknown",
            f"table message_{queue_id} on node {info.name}",
            detail,
            # An empty table with a raised head has lost its messages: no safe repair.
            safe=is_empty_table and head == 0,
            node=info.id,
            ids=(queue_id,),
        )
    for queue_id in sorted(
        node_contents.heads.keys() - node_contents.tables - expected_ids
    ):
        head = node_contents.heads[queue_id]
        yield Finding(
            "head_unknown",
            f"queue_head row {queue_id} on node {info.name}",
            f"its log end offset is {head}",
            safe=head == 0,
            node=info.id,
            ids=(queue_id,),
        )
    # Reader rows that belong to no subscription or instance, by group.
    unused_queues: dict[int, set[int]] = {}
    for row in node_contents.readers:
        if is_unused(row, expected):
            unused_queues.setdefault(row.group_id, set()).add(row.queue)
    for group, queues in sorted(unused_queues.items()):
        yield Finding(
            "readers_unknown",
            f"group {expected.groups.get(group, f'with id {group}')} on node {info.name}",
            f"in queues {list_ids(queues)}",
            safe=True,
            node=info.id,
            group=group,
            ids=tuple(sorted(queues)),
        )


def _check_queue(queue: ExpectedQueue, node_contents: Contents) -> Iterator[Finding]:
    """Yield the findings on a queue that metadata expects on a node."""
    # Metadata has the highest head that was seen, so a node that lost messages is noticed.
    head, highest = node_contents.heads.get(queue.queue), queue.head_seen
    where = f"queue {queue.queue} of topic {queue.topic} on node {queue.node}"
    node, ids = queue.node_id, (queue.queue,)
    if queue.queue not in node_contents.tables:
        never_used = not head and not highest
        detail = (
            "no message was ever stored"
            if never_used
            else f"its log end offset was {max(head or 0, highest)}"
        )
        yield Finding("table_missing", where, detail, safe=never_used, node=node, ids=ids)
    elif head is None:
        yield Finding(
            "head_missing", where, f"its log end offset was {highest}", node=node, ids=ids
        )
    if head is not None and head < highest:
        detail = f"the log end offset is {head}; it was {highest}"
        yield Finding("head_fell", where, detail, node=node, ids=ids)


def is_unused(row: ReaderRow, expected: ExpectedState) -> bool:
    """Return True if the subscription or the instance of a reader row was removed."""
    # A queue that is being created has reader rows before metadata counts it as ready.
    if row.queue in expected.creating:
        return False
    queue = expected.queues.get(row.queue)
    if queue is None or (row.group_id, queue.topic_id) not in expected.subscriptions:
        return True
    return (
        row.group_id in expected.broadcasting
        and (row.group_id, row.instance) not in expected.instances
    )


def check_metadata(expected: ExpectedState) -> Iterator[Finding]:
    """Yield the findings in metadata alone."""
    for kind, ids_by_group in expected_state.find_contradictions():
        label = "in queues" if kind.startswith("position") else "members"
        for group, ids in sorted(ids_by_group.items()):
            yield Finding(
                kind,
                f"group {expected.groups.get(group, group)}",
                f"{label} {list_ids(ids)}",
                safe=bool(KINDS[kind].repair),
                group=group,
                ids=tuple(ids),
            )
    names = {queue.topic_id: queue.topic for queue in expected.queues.values()}
    for group, topic in retry_topic_rows.find_missing():
        yield Finding(
            "failure_topic_missing",
            f"group {expected.groups.get(group, group)}, topic {names.get(topic, topic)}",
            "there is none",
            safe=True,
            group=group,
            topic=topic,
        )
    for topic, name in expected_state.find_orphaned_retry_topics():
        yield Finding(
            "failure_topic_unknown",
            f"topic {name}",
            "its subscription is gone",
            topic=topic,
        )


def check_workers(change: int) -> Iterator[Finding]:
    """Yield workers that have not loaded a change of metadata."""
    late = snapshot_acks.find_late_workers(change)
    if late:
        yield Finding("worker_behind", ", ".join(late), f"metadata was at change {change}")
