"""Reads messages without a group: by queue and offset, or by message id. No position moves.

As in pulls, only durable messages are shown. A message that a crash may lose has no offset
yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from messagestore.engine.messages import (
    StoredMessage,
    StoredRow,
    masked,
    parse_message_id,
    stored_message,
)
from messagestore.heads import durability
from messagestore.heads.gap_check import MissingOffsets, dense_length, explain_all_missing
from messagestore.pool import node_pools
from messagestore.tables import message_sql, queue_sql
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.cache.snapshot_types import TopicInfo
from metadata.config import config
from metadata.db import access
from metadata.errors import Code, Invalid, NotFound

KEYS_BYTES = 256 * 1024  # of bodies, which are read with the keys


class MessagePage(Struct, frozen=True):
    """Messages in order, the number of rows read, and the next offset (None at the head).

    `masked`: the actor may not read bodies and headers, so they are left out. `missing`:
    the offsets between the requested and the next offset that have no messages. `rows` are
    there instead of `messages` if they were asked for.
    """

    messages: tuple[StoredMessage, ...]
    scanned: int
    next: int | None
    masked: bool = False
    missing: tuple[MissingOffsets, ...] = ()
    rows: Sequence[StoredRow] = ()


def read_page(
    *,
    topic: str,
    queue: int,
    offset: int,
    limit: int,
    actor: Actor,
    as_rows: bool = False,
) -> MessagePage:
    """Return at most `limit` messages of a queue from an offset on.

    Fewer if their bodies exceed `config.max_pull_bytes`. An offset below the log start
    offset starts there, and offsets without a message are skipped; the page names both as
    `missing`. `as_rows`: leave them as rows, unless bodies must be left out. Needs `browse`
    on the topic. Raises NotFound (topic_not_found, queue_not_found), Invalid.
    """
    may_read = _check_access(topic, queue, actor)
    if offset < 0:
        raise Invalid.field("offset", f"{offset} is negative; offsets start at 0")
    if not 1 <= limit <= config.max_pull_messages:
        raise Invalid.field(
            "limit", f"{limit} is not within 1 and {config.max_pull_messages}"
        )
    head = durability.head_of(queue=queue)
    if head is None:
        raise NotFound(
            f"Queue {queue} has no row in queue_head on its node.",
            code=Code.QUEUE_NOT_FOUND,
        )
    start = max(offset, head.low)
    with node_pools.node_of(queue).reading() as session:
        while True:
            # Read only below the head that is durable: rows above it may still be lost.
            end = min(start + limit, head.head)
            rows = message_sql.select_rows(
                session,
                queue=queue,
                first=start,
                end=end,
                most_bytes=config.max_pull_bytes,
            )
            if rows or start >= head.head:
                break
            # No row at all: the page continues after the declared gap, else a reader would
            # ask for the same offset forever. Without a gap it ends here, empty.
            gaps = queue_sql.read_gaps(session, queue=queue, position=start)
            if not gaps or gaps[0][0] > start:
                start = end
                break
            start = min(gaps[0][1], head.head)
        offsets = [row[0] for row in rows]
        next_offset = offsets[-1] + 1 if rows else start
        missing: list[MissingOffsets] = []
        if dense_length(offset, offsets) < next_offset - offset:
            # Both are read after the rows: only then they explain all rows that were missing.
            fresh_head = queue_sql.read_head(session, queue=queue)
            low = head.low if fresh_head is None else fresh_head.low
            gaps = queue_sql.read_gaps(session, queue=queue, position=offset)
            missing = explain_all_missing(
                offsets, first=offset, end=next_offset, low=low, gaps=gaps
            )
    as_rows = as_rows and may_read
    messages = [] if as_rows else [stored_message(queue, row) for row in rows]
    return MessagePage(
        tuple(messages if may_read else map(masked, messages)),
        len(rows),
        next_offset if next_offset < head.head else None,
        not may_read,
        tuple(missing),
        rows if as_rows else (),
    )


def read_keys(
    *, topic: str, queue: int, offset: int, limit: int, actor: Actor
) -> list[str | None]:
    """Return the keys of at most `limit` messages from an offset on.

    Fewer if their bodies exceed KEYS_BYTES. Needs `browse` on the topic, or the right of a
    person to look. Raises NotFound, NodeUnavailable.
    """
    _check_access(topic, queue, actor)
    head = durability.head_of(queue=queue)
    if head is None:
        return []
    first = max(offset, head.low)
    with node_pools.node_of(queue).reading() as session:
        messages = message_sql.select_messages(
            session,
            queue=queue,
            first=first,
            end=min(first + limit, head.head),
            most_bytes=KEYS_BYTES,
        )
    return [message.key for message in messages]


def read_message(*, topic: str, message_id: str, actor: Actor) -> MessagePage:
    """Return a page with the message that has an id.

    Needs `browse` on the topic. Raises NotFound (message_not_found), Invalid.
    """
    access.require_look(actor, topic, snapshot.origin_of(topic))
    queue, offset = parse_message_id(message_id)
    may_read = _check_access(topic, queue, actor)
    head = durability.head_of(queue=queue)
    with node_pools.node_of(queue).reading() as session:
        messages = message_sql.select_messages(
            session, queue=queue, first=offset, end=offset + 1, most_bytes=1
        )
    # Retention raises `low` first. The row stays until its partition is dropped.
    if head is not None and offset < head.low:
        detail = (
            f"Message {message_id} was deleted: the log start offset of queue {queue} "
            f"is {head.low}."
        )
        raise NotFound(detail, code=Code.MESSAGE_NOT_FOUND)
    if not messages or head is None or offset >= head.head:
        raise NotFound(
            f"Topic {topic} has no message {message_id}.", code=Code.MESSAGE_NOT_FOUND
        )
    return MessagePage(
        tuple(messages if may_read else map(masked, messages)), 1, None, not may_read
    )


def read_sender(*, topic: str, queue: int, offset: int, actor: Actor) -> str:
    """Return the name of the API key or account that sent a message, '' if it does not
    exist.

    In a retry topic it is the sender of the failed message, or `redrive`. Needs what
    `read_message` needs.
    """
    _check_access(topic, queue, actor)
    with node_pools.node_of(queue).reading() as session:
        return message_sql.read_producer(session, queue=queue, offset=offset)


def _check_access(topic: str, queue: int, actor: Actor) -> bool:
    """Return True if the actor may read bodies.

    Raises Forbidden if it may not even look at the topic, NotFound if the topic has no such
    queue.
    """
    may_read = access.require_look(actor, topic, snapshot.origin_of(topic))
    require_queue(snapshot.find_topic(topic), queue)
    return may_read


def require_queue(topic: TopicInfo, queue: int) -> None:
    """Raise NotFound (queue_not_found) unless a topic has a queue."""
    if queue not in topic.queues:
        queues = ", ".join(map(str, topic.queues))
        detail = f"{queue} is not a queue of topic {topic.name}; its queues are {queues}."
        raise NotFound(detail, code=Code.QUEUE_NOT_FOUND)
