"""The check: nodes are looked at, then metadata; what is found twice counts, as things may be under way."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from messagestore import tables
from messagestore.consistency.findings import KINDS, Finding
from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.pool import session_pool
from messagestore.tables import ReaderRow
from metadata.actors import Actor
from metadata.brokers import snapshot_acks
from metadata.cache import snapshot
from metadata.cache.snapshot import NodeInfo
from metadata.db import access
from metadata.errors import CatmqError, NodeUnavailable
from metadata.groups import ledger, retry_topic_rows
from metadata.groups.ledger import Ledger, LedgerQueue
from metadata.monitoring import alarms
from metadata.monitoring.health_checks import numbers

AGAIN_AFTER_S = 1.5  # what is under way is over by then; a worker follows metadata within a second


@dataclass(slots=True)
class NodeLook:
    """State that a node showed; `identity` as it stands in its database."""

    info: NodeInfo
    identity: str = ""
    tables: frozenset[int] = frozenset()
    empty: frozenset[int] = frozenset()  # of those tables that look superfluous
    heads: dict[int, int] = field(default_factory=dict)
    readers: list[ReaderRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Report:
    """Findings of a check, and nodes that could not be looked at: {name: why}."""

    findings: tuple[Finding, ...]
    unchecked: dict[str, str]


def check(*, actor: Actor) -> Report:
    """Compares metadata with all nodes that answer. Reads only. Needs `admin` on everything.

    Raises Forbidden, MetadataUnavailable.
    """
    access.require(actor, "admin", "*", what="check")
    first = _once()
    if not first.findings:
        return first
    time.sleep(AGAIN_AFTER_S)
    again = _once()
    known = {one.key for one in first.findings}
    return Report(tuple(one for one in again.findings if one.key in known), again.unchecked)


def watch(*, actor: Actor) -> int:
    """Makes the alarms of disagreement, one for each kind, agree with a check; how many began or ended."""
    report = check(actor=actor)
    kinds: dict[str, list[str]] = {}
    for one in report.findings:
        kinds.setdefault(one.kind, []).append(f"{one.where}: {one.what}")
    found = {kind: f"{len(said)} found; {said[0]}" for kind, said in kinds.items()}
    unclear = KINDS if report.unchecked else ()
    return alarms.keep(kind="inconsistent", found=found, unclear=unclear, ends_after_s=0)


def _once() -> Report:
    snapshot.refresh()
    change, looks, unchecked = ledger.change(), [], {}
    for node_id, info in sorted(snapshot.current().nodes.items()):
        try:
            looks.append(look(info))
        except (CatmqError, OSError) as error:
            why = error.detail if isinstance(error, CatmqError) else str(error)
            unchecked[info.name] = why or f"node {node_id} does not answer"
    known = ledger.read()  # after the nodes: what was made meanwhile is known then
    found = [finding for one in looks for finding in of_node(one, known)]
    found += [*of_metadata(known), *of_workers(change)]
    return Report(tuple(found), unchecked)


def look(info: NodeInfo) -> NodeLook:
    """Read what is on a node, not asking whether it may be served. Raises NodeUnavailable and its faults."""
    session = session_pool.connect(info)
    try:
        return _look(session, info)
    except db_errors.Ambiguous as error:
        raise NodeUnavailable(error.detail) from error
    finally:
        session.close()


def _look(session: Session, info: NodeInfo) -> NodeLook:
    seen = NodeLook(info)
    try:
        seen.identity = tables.read_identity(session)
    except db_errors.Final:
        seen.identity = ""  # nobody wrote one
    if info.identity and seen.identity != info.identity:
        return seen
    seen.readers = tables.all_readers(session)
    seen.heads = tables.read_heads(session, queues=None)
    seen.tables = frozenset(tables.message_tables(session))
    known = snapshot.current().queues
    unknown = [queue for queue in sorted(seen.tables) if queue not in known]
    seen.empty = frozenset(queue for queue in unknown if is_empty(session, queue))
    return seen


def is_empty(session: Session, queue: int) -> bool:
    """Return True if a table holds no message."""
    return tables.offset_ends(session, queue=queue, first=0) == (None, None)


def of_node(seen: NodeLook, known: Ledger) -> Iterator[Finding]:
    """Yield what is wrong on a node."""
    info = seen.info
    if info.identity and seen.identity != info.identity:
        found = f"it carries the identity {seen.identity or '(none)'}, not {info.identity}"
        yield Finding("identity_differs", f"node {info.name}", found, node=info.id)
        return
    mine = [one for one in known.queues.values() if one.node_id == info.id and not one.retired]
    for queue in mine:
        yield from _of_queue(queue, seen)
    yield from _of_leftovers(seen, known)
    yield from _of_readers(seen, known)


def _of_queue(queue: LedgerQueue, seen: NodeLook) -> Iterator[Finding]:
    node, head = seen.info, seen.heads.get(queue.id)
    where = f"queue {queue.id} of topic {queue.topic} on node {node.name}"
    if queue.id not in seen.tables:
        never = head == 0 and queue.head == 0
        stored = (
            "no message was ever stored" if never else f"messages up to {max(head or 0, queue.head)} were"
        )
        yield Finding("table_missing", where, stored, safe=never, node=node.id, ids=(queue.id,))
    elif head is None:
        yield Finding("head_missing", where, f"it was at {queue.head}", node=node.id, ids=(queue.id,))
    if head is not None and head < queue.head:
        what = f"the head is {head}; it was at {queue.head}"
        yield Finding("head_behind", where, what, node=node.id, ids=(queue.id,))


def _of_leftovers(seen: NodeLook, known: Ledger) -> Iterator[Finding]:
    node = seen.info
    there = known.queues.keys() | known.making | {0}  # 0 is what a registration tries a node with
    for queue in sorted(seen.tables - there):
        head = seen.heads.get(queue, 0)
        safe = queue in seen.empty and head == 0
        what = "it is empty" if queue in seen.empty else "it holds messages"
        what += "" if head == 0 else f"; messages up to {head} were stored"
        where = f"table message_{queue} on node {node.name}"
        yield Finding("table_unknown", where, what, safe=safe, node=node.id, ids=(queue,))
    for queue in sorted(seen.heads.keys() - seen.tables - there):
        head = seen.heads[queue]
        where = f"queue_head row {queue} on node {node.name}"
        yield Finding(
            "head_unknown", where, f"its head is {head}", safe=head == 0, node=node.id, ids=(queue,)
        )


def _of_readers(seen: NodeLook, known: Ledger) -> Iterator[Finding]:
    lone: dict[int, set[int]] = {}
    for row in seen.readers:
        if is_lone(row, known):
            lone.setdefault(row.group_id, set()).add(row.queue)
    for group, queues in sorted(lone.items()):
        where = f"group {known.groups.get(group, f'with id {group}')} on node {seen.info.name}"
        what = f"in queues {numbers(queues)}"
        yield Finding(
            "readers_unknown",
            where,
            what,
            safe=True,
            node=seen.info.id,
            group=group,
            ids=tuple(sorted(queues)),
        )


def is_lone(row: ReaderRow, known: Ledger) -> bool:
    """Return True if nobody reads by a position: its subscription, or its instance, is gone."""
    if row.queue in known.making:
        return False
    queue = known.queues.get(row.queue)
    if queue is None or (row.group_id, queue.topic_id) not in known.readings:
        return True
    return row.group_id in known.broadcasting and (row.group_id, row.instance) not in known.instances


def of_metadata(known: Ledger) -> Iterator[Finding]:
    """Yield what is wrong in metadata alone."""
    looks = (
        ("position_unknown", ledger.positions_without_subscription(), True, "in queues"),
        ("position_missing", ledger.subscriptions_without_position(), True, "in queues"),
        ("heartbeat_missing", ledger.members_without_heartbeat(), True, "members"),
        ("member_silent", ledger.silent_members(), False, "members"),
    )
    for kind, found, safe, word in looks:
        for group, ids in sorted(found.items()):
            where = f"group {known.groups.get(group, group)}"
            yield Finding(kind, where, f"{word} {numbers(ids)}", safe=safe, group=group, ids=tuple(ids))
    yield from _of_failure_topics(known)


def _of_failure_topics(known: Ledger) -> Iterator[Finding]:
    names = {queue.topic_id: queue.topic for queue in known.queues.values()}
    for group, topic in retry_topic_rows.missing():
        where = f"group {known.groups.get(group, group)}, topic {names.get(topic, topic)}"
        yield Finding("failure_topic_missing", where, "there is none", safe=True, group=group, topic=topic)
    for topic, name in ledger.lone_failure_topics():
        what = f"topic {name}"
        yield Finding("failure_topic_unknown", what, "its subscription is gone", topic=topic)


def of_workers(change: int) -> Iterable[Finding]:
    """Workers that have not followed metadata to a change."""
    late = snapshot_acks.behind(change)
    if late:
        yield Finding("worker_behind", ", ".join(late), f"metadata was at change {change}")
