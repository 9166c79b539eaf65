"""Looking at messages without a group: by queue and offset, or by message id. Moves no
position.

As in pulls, only durable messages are shown: what a crash may take back never had its
offset.
"""

from __future__ import annotations

from dataclasses import dataclass

from messagestore.engine.messages import StoredMessage, masked, parse_message_id
from messagestore.heads import durability
from messagestore.pool import node_pools
from messagestore.tables import message_sql
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.cache.snapshot_types import TopicInfo
from metadata.config import config
from metadata.db import access
from metadata.errors import Code, Invalid, NotFound

KEYS_BYTES = 256 * 1024  # of bodies, which come with the keys


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages in order, how many rows were looked at, and the offset to go on from (None
    at the head).

    `masked`: the actor sees only the outside of messages, so bodies and headers are left
    out.
    """

    messages: tuple[StoredMessage, ...]
    scanned: int
    next: int | None
    masked: bool = False


def read_page(
    *, topic: str, queue: int, offset: int, limit: int, actor: Actor
) -> MessagePage:
    """At most `limit` messages of a queue from an offset on; fewer when they weigh more
    than an answer may.

    An offset below what retention kept starts at the first message there is. Needs `browse`
    on the topic. Raises NotFound (topic_not_found, queue_not_found), Invalid.
    """
    reads = _reads(topic, queue, actor)
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
        messages = message_sql.select_messages(
            session,
            queue=queue,
            first=start,
            end=min(start + limit, head.head),
            most_bytes=config.max_pull_bytes,
        )
    following = messages[-1].offset + 1 if messages else start
    shown = tuple(messages) if reads else tuple(map(masked, messages))
    return MessagePage(
        shown, len(messages), following if following < head.head else None, not reads
    )


def read_keys(
    *, topic: str, queue: int, offset: int, limit: int, actor: Actor
) -> list[str | None]:
    """Keys of at most `limit` messages from an offset on; fewer where bodies weigh more
    than KEYS_BYTES.

    Needs `browse` on the topic, or of a person to look. Raises NotFound, NodeUnavailable.
    """
    _reads(topic, queue, actor)
    head = durability.head_of(queue=queue)
    if head is None:
        return []
    first = max(offset, head.low)
    with node_pools.node_of(queue).reading() as session:
        found = message_sql.select_messages(
            session,
            queue=queue,
            first=first,
            end=min(first + limit, head.head),
            most_bytes=KEYS_BYTES,
        )
    return [one.key for one in found]


def read_message(*, topic: str, message_id: str, actor: Actor) -> MessagePage:
    """The message with an id. Needs `browse` on the topic. Raises NotFound
    (message_not_found), Invalid.
    """
    access.require_look(actor, topic, snapshot.origin_of(topic))
    queue, offset = parse_message_id(message_id)
    reads = _reads(topic, queue, actor)
    head = durability.head_of(queue=queue)
    with node_pools.node_of(queue).reading() as session:
        messages = message_sql.select_messages(
            session, queue=queue, first=offset, end=offset + 1, most_bytes=1
        )
    # its row may be there until its partition goes
    if head is not None and offset < head.low:
        what = (
            f"Message {message_id} was deleted: the log start offset of queue {queue} "
            f"is {head.low}."
        )
        raise NotFound(what, code=Code.MESSAGE_NOT_FOUND)
    if not messages or head is None or offset >= head.head:
        raise NotFound(
            f"Topic {topic} has no message {message_id}.", code=Code.MESSAGE_NOT_FOUND
        )
    return MessagePage(
        tuple(messages) if reads else tuple(map(masked, messages)), 1, None, not reads
    )


def read_sender(*, topic: str, queue: int, offset: int, actor: Actor) -> str:
    """Return the name of the API key or account that sent a message; '' if it is not there.

    In a retry topic it is the sender of the message that failed, or `redrive`. Needs what
    `read_message` needs.
    """
    _reads(topic, queue, actor)
    with node_pools.node_of(queue).reading() as session:
        return message_sql.read_producer(session, queue=queue, offset=offset)


def _reads(topic: str, queue: int, actor: Actor) -> bool:
    """Return True if the actor may read bodies; raises unless it may look at a queue that
    the topic has.
    """
    reads = access.require_look(actor, topic, snapshot.origin_of(topic))
    require_queue(snapshot.find_topic(topic), queue)
    return reads


def require_queue(topic: TopicInfo, queue: int) -> None:
    """Raise NotFound (queue_not_found) unless a topic has a queue."""
    if queue not in topic.queues:
        mine = ", ".join(map(str, topic.queues))
        what = f"{queue} is not a queue of topic {topic.name}; its queues are {mine}."
        raise NotFound(what, code=Code.QUEUE_NOT_FOUND)
