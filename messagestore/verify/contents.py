"""Contents of nodes against metadata as a whole: tables, head rows, positions; and metadata
by itself.
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
    """Contents of a node; `identity` as it stands in its database, `empty`: those of the
    tables that belong to no queue and hold no message.
    """

    info: NodeInfo
    identity: str = ""
    tables: frozenset[int] = frozenset()
    empty: frozenset[int] = frozenset()
    heads: dict[int, int] = field(default_factory=dict)
    readers: list[ReaderRow] = field(default_factory=list)


def read(info: NodeInfo) -> Contents:
    """Read what is on a node, whether it may be served or not. Raises NodeUnavailable,
    db_errors.Final.
    """
    with session_pool.direct(info) as session:
        seen = Contents(info)
        try:
            seen.identity = promotion_sql.read_identity(session)
        except db_errors.Final:
            seen.identity = ""  # nobody wrote one
        if info.identity and seen.identity != info.identity:
            return seen
        seen.readers = audit_sql.list_all_readers(session)
        seen.heads = queue_sql.read_heads(session, queues=None)
        seen.tables = frozenset(audit_sql.list_message_tables(session))
        unknown = sorted(seen.tables - snapshot.current().queues.keys())
        seen.empty = frozenset(queue for queue in unknown if is_empty(session, queue))
        return seen


def is_empty(session: Session, queue: int) -> bool:
    return audit_sql.read_offset_ends(session, queue=queue, first=0) == (None, None)


def of_node(seen: Contents, known: ExpectedState) -> Iterator[Finding]:
    """Yield what is wrong on a node."""
    info = seen.info
    if info.identity and seen.identity != info.identity:
        found = f"its identity is {seen.identity or '(none)'}, not {info.identity}"
        yield Finding("identity_differs", f"node {info.name}", found, node=info.id)
        return
    for queue in known.queues.values():
        if queue.node_id == info.id and not queue.gone:
            yield from _of_queue(queue, seen)
    yield from _of_leftovers(seen, known)
    yield from _of_readers(seen, known)


def _of_queue(queue: ExpectedQueue, seen: Contents) -> Iterator[Finding]:
    head, highest = seen.heads.get(queue.queue), queue.head_seen
    where = f"queue {queue.queue} of topic {queue.topic} on node {queue.node}"
    node, ids = queue.node_id, (queue.queue,)
    if queue.queue not in seen.tables:
        never = not head and not highest
        what = (
            "no message was ever stored"
            if never
            else f"its log end offset was {max(head or 0, highest)}"
        )
        yield Finding("table_missing", where, what, safe=never, node=node, ids=ids)
    elif head is None:
        yield Finding(
            "head_missing", where, f"its log end offset was {highest}", node=node, ids=ids
        )
    if head is not None and head < highest:
        what = f"the log end offset is {head}; it was {highest}"
        yield Finding("head_fell", where, what, node=node, ids=ids)


def _of_leftovers(seen: Contents, known: ExpectedState) -> Iterator[Finding]:
    node = seen.info
    # 0 is what a registration tries a node with
    there = known.queues.keys() | known.creating | {0}
    for queue in sorted(seen.tables - there):
        head = seen.heads.get(queue, 0)
        what = "it is empty" if queue in seen.empty else "it holds messages"
        what += "" if head == 0 else f"; its log end offset was {head}"
        where = f"table message_{queue} on node {node.name}"
        safe = queue in seen.empty and head == 0
        yield Finding("table_unknown", where, what, safe=safe, node=node.id, ids=(queue,))
    for queue in sorted(seen.heads.keys() - seen.tables - there):
        head = seen.heads[queue]
        where, what = (
            f"queue_head row {queue} on node {node.name}",
            f"its log end offset is {head}",
        )
        yield Finding(
            "head_unknown", where, what, safe=head == 0, node=node.id, ids=(queue,)
        )


def _of_readers(seen: Contents, known: ExpectedState) -> Iterator[Finding]:
    lone: dict[int, set[int]] = {}
    for row in seen.readers:
        if is_lone(row, known):
            lone.setdefault(row.group_id, set()).add(row.queue)
    for group, queues in sorted(lone.items()):
        where = (
            f"group {known.groups.get(group, f'with id {group}')} on node {seen.info.name}"
        )
        what, node, ids = (
            f"in queues {list_ids(queues)}",
            seen.info.id,
            tuple(sorted(queues)),
        )
        yield Finding(
            "readers_unknown", where, what, safe=True, node=node, group=group, ids=ids
        )


def is_lone(row: ReaderRow, known: ExpectedState) -> bool:
    """Return True if nobody reads by a position: its subscription, or its instance, is
    gone.
    """
    if row.queue in known.creating:
        return False
    queue = known.queues.get(row.queue)
    if queue is None or (row.group_id, queue.topic_id) not in known.subscriptions:
        return True
    return (
        row.group_id in known.broadcasting
        and (row.group_id, row.instance) not in known.instances
    )


def of_metadata(known: ExpectedState) -> Iterator[Finding]:
    """Yield what is wrong in metadata alone."""
    for kind, found in expected_state.find_contradictions():
        word = "in queues" if kind.startswith("position") else "members"
        for group, ids in sorted(found.items()):
            where, what = (
                f"group {known.groups.get(group, group)}",
                f"{word} {list_ids(ids)}",
            )
            yield Finding(
                kind,
                where,
                what,
                safe=bool(KINDS[kind].repair),
                group=group,
                ids=tuple(ids),
            )
    names = {queue.topic_id: queue.topic for queue in known.queues.values()}
    for group, topic in retry_topic_rows.find_missing():
        where = f"group {known.groups.get(group, group)}, topic {names.get(topic, topic)}"
        yield Finding(
            "failure_topic_missing",
            where,
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


def of_workers(change: int) -> Iterator[Finding]:
    """Yield workers that have not followed metadata to a change."""
    late = snapshot_acks.find_late_workers(change)
    if late:
        yield Finding("worker_behind", ", ".join(late), f"metadata was at change {change}")
