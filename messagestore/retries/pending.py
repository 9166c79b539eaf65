"""Lists and counts of pending retries: delayed copies, and unread messages of retry topics."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.heads.gap_check import count_messages
from messagestore.retries import dead_letters
from messagestore.retries.dead_letters import FailedMessage
from messagestore.tables import failure_sql, promotion_sql, reader_sql
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.rules.wire import Number


class PendingRetry(FailedMessage, frozen=True, kw_only=True):
    """A message that is waiting for a retry; `topic`, `queue` and `offset` are those of the
    original.
    """

    attempt: Annotated[Number, Meta(description="number of the retry")]
    due_at_ms: Number


class RetryCount(Struct, frozen=True):
    """Number of a topic's retries that are not due yet, and of those that are due and
    unread.
    """

    topic: str
    failure_topic: str
    waiting: Number
    unread: Number


class PendingRetries(Struct, frozen=True):
    """Messages that are waiting for a retry."""

    topics: tuple[RetryCount, ...]
    messages: tuple[PendingRetry, ...]
    away: tuple[str, ...]


def waiting(
    *, group: str, actor: Actor, topic: str | None = None, limit: int = 100
) -> PendingRetries:
    """Return the pending retries of a group, or of a single topic. Needs `manage` on the
    group.

    Lists at most `limit` messages. Raises NotFound, Forbidden, Invalid, and NodeUnavailable
    if no retry node answers.
    """
    selection = dead_letters.build_filter(group=group, topic=topic, error=None, actor=actor)
    dead_letters.check_limit(limit)
    view = snapshot.current()
    retry_topics = [
        failures
        for (owner, origin), failures in view.failure_topics.items()
        if owner == selection.group_id and selection.topic_id in (None, origin)
    ]
    retry_topics.sort(key=lambda t: t.name)
    queues = [queue for retry_topic in retry_topics for queue in retry_topic.queues]
    counts: dict[int, int] = {}
    unread: dict[int, int] = {}
    rows: list[failure_sql.WaitingRow] = []

    def read(session: Session, node_queues: list[int]) -> None:
        counts.update(failure_sql.count_waiting(session, queues=node_queues))
        rows.extend(failure_sql.list_waiting(session, queues=node_queues, most=limit))
        gaps = promotion_sql.read_all_gaps(session, queues=node_queues)
        for queue, position in reader_sql.read_positions(
            session, group_id=selection.group_id, queues=node_queues
        ).items():
            # Messages below the log start offset are deleted: they will never be read.
            first = max(position.committed or 0, position.low)
            unread[queue] = count_messages(first, position.head, gaps=gaps.get(queue, ()))

    nodes_away = dead_letters.query_retry_nodes(sweeping.queues_by_node(queues), read)
    rows.sort(key=lambda row: (row.due_at_ms, row.queue, row.id))
    retry_counts = []
    for retry_topic in retry_topics:
        origin = view.topics.get(retry_topic.failure_of or 0)
        retry_counts.append(
            RetryCount(
                origin.name if origin is not None else "",
                retry_topic.name,
                sum(counts.get(queue, 0) for queue in retry_topic.queues),
                sum(unread.get(queue, 0) for queue in retry_topic.queues),
            )
        )
    return PendingRetries(
        tuple(retry_counts),
        tuple(
            PendingRetry(
                attempt=row.attempt,
                due_at_ms=row.due_at_ms,
                **dead_letters.failed_message_fields(row),
            )
            for row in rows[:limit]
        ),
        nodes_away,
    )
