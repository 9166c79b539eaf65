"""Lists, counts and recalls of delayed messages before their delivery.

A recall deletes the row, and records that in `sent_batch` under the same id as a delivery
would. So a message that is recalled when it is due is either recalled or delivered, never
both, and a repeated recall gets the same answer. A recall is an act on data like a send, so
it is logged and not audited.
"""

from __future__ import annotations

import logging

from msgspec import Struct

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
from metadata.rules.rights import Right

log = logging.getLogger(__name__)
MOST_COUNTED = 100_000
_TRIES = 3


class WaitingMessage(Struct, frozen=True):
    """A delayed message. Times are in ms since 1970 UTC by its node's clock."""

    message_id: str
    row: DelayedRow


class Waiting(Struct, frozen=True):
    """A page of the delayed messages of a topic, in the order of their ids.

    `next`: the `after` of the next page, None if this is the last. `count`: number of
    the topic's delayed messages, counted up to MOST_COUNTED on each node. `away`: names of
    nodes that did not answer.
    """

    messages: tuple[WaitingMessage, ...]
    next: str | None
    count: int
    away: tuple[str, ...] = ()


def recall(*, message_id: str, actor: Actor) -> None:
    """Delete a delayed message before its delivery. Needs the right `produce` on its topic.

    A repeat is harmless. Raises Conflict (already_delivered), NotFound (message_not_found:
    the message never existed, or was delivered or recalled two days ago or earlier),
    Invalid, NodeUnavailable.
    """
    # The id of a message in a queue: it is not delayed, or its delivery has happened.
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
            rows = delayed_sql.read_delayed(session, rows=[row])
        if not rows:
            return _check_recalled(node, message_id, row, actor)
        queue = rows[0].queue
        _allow(queue, message_id, actor)
        # A due row for a queue of another node may have been copied there already. It is
        # not deleted, because the copy would still be delivered.
        on_own_node = snapshot.find_queue(queue).node_id == node_id
        leaving = Leaving(row, queue, moved_id(node_id, row))
        try:
            with node.writing() as session:
                has_left = delayed_sql.leave_delayed(
                    session, leaving=leaving, message_count=0, also_due=on_own_node
                )
        except db_errors.Ambiguous:
            continue
        if has_left:
            log.info("%s %s deleted delayed message %s", actor.kind, actor.name, message_id)
            return None
        # The row was moved or retargeted between the read and the delete.
    raise _delivered(message_id)  # the message is due, and is being copied to another node


def _check_recalled(node: Node, message_id: str, row: int, actor: Actor) -> None:
    """Return if a row that no longer exists was recalled. Raises Conflict if it was
    delivered.

    Raises NotFound if `sent_batch` has no record of it.
    """
    with node.reading() as session:
        departure = message_sql.find_batch(session, batch_id=moved_id(node.info.id, row))
    if departure is None:
        raise _not_found(message_id)
    # The record of a row that left by a recall or a copy has queue 0 and the queue in
    # first_offset.
    _allow(departure.queue or departure.first_offset, message_id, actor)
    # The record may be visible before it is on disk, and the answer must still hold after a
    # crash.
    durability.confirm(node_id=node.info.id)
    if departure.queue:
        raise _delivered(
            message_id, f" as {stored_id(departure.queue, departure.first_offset)}"
        )
    if departure.message_count:
        raise _delivered(message_id)


def _allow(queue: int, message_id: str, actor: Actor) -> None:
    """Raise NotFound if the queue has no topic, Forbidden if the actor may not send to it."""
    # An actor without any right on the topic gets the answer for an unknown id, so that the
    # answer does not reveal that the topic exists.
    view = snapshot.current()
    info = view.queues.get(queue)
    topic = view.topics.get(info.topic_id) if info is not None else None
    if topic is None or not access.may_see(actor, topic.name):
        raise _not_found(message_id)
    access.require(actor, Right.PRODUCE, topic.name)


def _delivered(message_id: str, place: str = "") -> Conflict:
    return Conflict(
        f"Message {message_id} is in its queue{place}.", code=Code.ALREADY_DELIVERED
    )


def _not_found(message_id: str) -> NotFound:
    cause = f"No delayed message {message_id} waits, and none was delivered in the last two days."
    return NotFound(cause, code=Code.MESSAGE_NOT_FOUND)


def of_topic(
    *, topic: str, after: str | None = None, limit: int = 100, actor: Actor
) -> Waiting:
    """Return up to `limit` delayed messages of a topic with ids above `after`.

    Needs the right `browse` on the topic. A page ends early when its bodies reach
    config.max_pull_bytes. Raises NotFound (topic_not_found), Invalid, and NodeUnavailable
    if no node answers.
    """
    access.require(actor, Right.BROWSE, topic)
    access.require_failure_origin(actor, Right.BROWSE, topic, snapshot.origin_of(topic))
    info = snapshot.find_topic(topic)
    if not 1 <= limit <= config.max_pull_messages:
        raise Invalid.field(
            "limit", f"{limit} is not within 1 and {config.max_pull_messages}"
        )
    start = parse_delayed_id(after, field="after") if after is not None else (0, 0)
    view = snapshot.current()
    node_of_queue = {q.id: q.node_id for q in view.queues.values() if q.topic_id == info.id}
    home_nodes = {
        node_id: view.nodes[node_id]
        for node_id in node_of_queue.values()
        if node_id in view.nodes
    }
    # An offline node with queues of the topic is included, so that the page names it in
    # `away`. All online nodes are included, because a row can wait on another node than its queue.
    nodes = dict(sorted((sweeping.online_nodes() | home_nodes).items()))
    queues, counts = list(node_of_queue), []
    messages: list[WaitingMessage] = []

    def is_full() -> bool:
        return len(messages) > limit or _bytes_left(messages) <= 0

    def read(session: Session, node: NodeInfo) -> None:
        counts.append(delayed_sql.count_delayed(session, queues=queues, most=MOST_COUNTED))
        if node.id < start[0] or is_full():
            return
        after_row = start[1] if node.id == start[0] else 0
        rows = delayed_sql.list_delayed(
            session,
            queues=queues,
            after=after_row,
            most=limit + 1 - len(messages),
            most_bytes=_bytes_left(messages),
        )
        messages.extend(WaitingMessage(delayed_id(node.id, row.id), row) for row in rows)

    nodes_away = sweeping.query_nodes(
        nodes, read, subject="Delayed messages", prepare=delayed_store.prepare
    )
    sweeping.require_answer(nodes_away, nodes=nodes)
    page = tuple(messages[:limit])
    return Waiting(
        page, page[-1].message_id if is_full() else None, sum(counts), tuple(nodes_away)
    )


def _bytes_left(messages: list[WaitingMessage]) -> int:
    """Return the number of bytes that further messages of the page may have."""
    return config.max_pull_bytes - sum(len(message.row.body) for message in messages)
