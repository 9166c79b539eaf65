"""Delayed messages that still wait: looked at, counted, recalled.

A recall deletes the row and remembers that under the id under which a move would be remembered, so of a
message that is recalled and moved at once exactly one happens, and whoever repeats a recall hears the same.
It is an act on data like a send, so it is logged and not audited.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from messagestore import sweeping
from messagestore.engine import db_errors
from messagestore.engine.messages import message_id as stored_id
from messagestore.engine.messages import parse_message_id
from messagestore.engine.mysql_session import Session
from messagestore.heads import durability
from messagestore.pool.node import Node
from messagestore.produce import delayed_store
from messagestore.produce.delayed_delivery import moved_id
from messagestore.produce.delayed_store import delayed_id, parse_delayed_id
from messagestore.tables import delayed_sql, message_sql
from messagestore.tables.shapes import DelayedRow, Leaving
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.config import config
from metadata.db import access
from metadata.errors import Code, Conflict, Invalid, NotFound

log = logging.getLogger(__name__)
MOST_COUNTED = 100_000
_TRIES = 3


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A delayed message; times in ms since 1970 UTC by its node's clock."""

    message_id: str
    row: DelayedRow


@dataclass(frozen=True, slots=True)
class Waiting:
    """Delayed messages of a topic in the order of their ids, the `after` of the next page (None: no more),
    and how many wait in all, counted up to MOST_COUNTED on each node. `away`: nodes that did not answer."""

    messages: tuple[WaitingMessage, ...]
    next: str | None
    count: int
    away: tuple[str, ...] = ()


def recall(*, message_id: str, actor: Actor) -> None:
    """Take a delayed message back before it is due. Needs `produce` on its topic. A repeat is harmless.

    Raises Conflict (already_delivered), NotFound (message_not_found: it never was, or left two days ago or
    more), Invalid, NodeUnavailable.
    """
    if not message_id.startswith("d"):
        queue, _ = parse_message_id(message_id)
        _allow(queue, message_id, actor)
        raise _delivered(message_id)
    node_id, row = parse_delayed_id(message_id)
    if node_id not in snapshot.current().nodes:
        raise _not_found(message_id)
    node = delayed_store.prepared(node_id)
    for _ in range(_TRIES):
        with node.reading() as session:
            found = delayed_sql.read_delayed(session, rows=[row])
        if not found:
            return _gone(node, message_id, row, actor)
        if _taken_back(node, message_id, found[0], actor):
            log.info("%s %s deleted delayed message %s", actor.kind, actor.name, message_id)
            return None
    raise _delivered(message_id)  # due, and on its way to another node


def _taken_back(node: Node, message_id: str, row: DelayedRow, actor: Actor) -> bool:
    _allow(row.queue, message_id, actor)
    here = snapshot.find_queue(row.queue).node_id == node.info.id
    leaving = Leaving(row.id, row.queue, moved_id(node.info.id, row.id))
    try:
        with node.writing() as session:
            return delayed_sql.leave_delayed(session, leaving=leaving, message_count=0, also_due=here)
    except db_errors.Ambiguous:
        return False  # the next look says what became of it


def _gone(node: Node, message_id: str, row: int, actor: Actor) -> None:
    """Say what became of a row that does not wait any more; nothing, if it was recalled."""
    with node.reading() as session:
        left = message_sql.find_batch(session, batch_id=moved_id(node.info.id, row))
    if left is None:
        raise _not_found(message_id)
    _allow(left.queue or left.first_offset, message_id, actor)
    durability.confirm(node_id=node.info.id)
    if left.queue:
        raise _delivered(message_id, f" as {stored_id(left.queue, left.first_offset)}")
    if left.message_count:
        raise _delivered(message_id)


def _allow(queue: int, message_id: str, actor: Actor) -> None:
    """Raise NotFound unless the queue's topic is there, Forbidden unless the actor may send to it.

    Who has no right on the topic hears the same as of an id that never was: not that there is such a topic.
    """
    known = snapshot.current()
    info = known.queues.get(queue)
    topic = known.topics.get(info.topic_id) if info is not None else None
    if topic is None or not access.sees(actor, topic.name):
        raise _not_found(message_id)
    access.require(actor, "produce", topic.name)


def _delivered(message_id: str, where: str = "") -> Conflict:
    return Conflict(f"Message {message_id} is in its queue{where}.", code=Code.ALREADY_DELIVERED)


def _not_found(message_id: str) -> NotFound:
    what = f"No delayed message {message_id} waits, and none was delivered in the last two days."
    return NotFound(what, code=Code.MESSAGE_NOT_FOUND)


def of_topic(*, topic: str, after: str | None = None, limit: int = 100, actor: Actor) -> Waiting:
    """At most `limit` delayed messages of a topic above the id `after`, and about as many bytes as an answer
    may have. Needs `browse` on it.

    Raises NotFound (topic_not_found), Invalid, NodeUnavailable when no node answers.
    """
    access.require(actor, "browse", topic)
    access.require_failed(actor, "browse", topic, snapshot.origin_of(topic))
    info = snapshot.find_topic(topic)
    if not 1 <= limit <= config.max_pull_messages:
        raise Invalid.field("limit", f"{limit} is not within 1 and {config.max_pull_messages}")
    start = parse_delayed_id(after, field="after") if after is not None else (0, 0)
    known = snapshot.current()
    mine = {one.id: one.node_id for one in known.queues.values() if one.topic_id == info.id}
    homes = {node_id: known.nodes[node_id] for node_id in mine.values() if node_id in known.nodes}
    asked = dict(sorted((sweeping.online() | homes).items()))  # one that is offline is named, too
    queues, counts = list(mine), []
    found: list[WaitingMessage] = []

    def is_full() -> bool:
        return len(found) > limit or _left(found) <= 0

    def read(session: Session, node: NodeInfo) -> None:
        counts.append(delayed_sql.count_delayed(session, queues=queues, most=MOST_COUNTED))
        if node.id < start[0] or is_full():
            return
        above = start[1] if node.id == start[0] else 0
        rows = delayed_sql.list_delayed(
            session, queues=queues, after=above, most=limit + 1 - len(found), most_bytes=_left(found)
        )
        found.extend(WaitingMessage(delayed_id(node.id, row.id), row) for row in rows)

    away = sweeping.ask(asked, read, what="Delayed messages", prepare=delayed_store.prepare)
    sweeping.require_any(away, asked=asked)
    page = tuple(found[:limit])
    return Waiting(page, page[-1].message_id if is_full() else None, sum(counts), tuple(away))


def _left(found: list[WaitingMessage]) -> int:
    return config.max_pull_bytes - sum(len(one.row.body) for one in found)
