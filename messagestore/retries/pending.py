"""Messages that wait for a retry: copies whose time has not come, and those unread in a retry topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.heads.gap_check import left
from messagestore.retries import dead_letters
from messagestore.retries.dead_letters import FailedMessage
from messagestore.tables import failure_sql, promotion_sql, reader_sql
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.cache.snapshot_types import TopicInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRetry(FailedMessage):
    """A message that waits for its retry."""

    attempt: int
    due_at_ms: int


@dataclass(frozen=True, slots=True)
class RetryCount:
    """Number of a topic's messages that wait for their time, and of those that have come and are unread."""

    topic: str
    failure_topic: str
    waiting: int
    unread: int


@dataclass(frozen=True, slots=True)
class PendingRetries:
    """Counts by topic, and the messages that are due first. `away`: nodes that did not answer."""

    topics: tuple[RetryCount, ...]
    messages: tuple[PendingRetry, ...]
    away: tuple[str, ...]


def waiting(*, group: str, actor: Actor, topic: str | None = None, limit: int = 100) -> PendingRetries:
    """List messages of a group, or of one of its topics, that wait for a retry. Needs `manage` on the group.

    Raises NotFound, Forbidden, Invalid; NodeUnavailable when no retry node answers.
    """
    kept = dead_letters.which(group=group, topic=topic, error=None, actor=actor)
    dead_letters.check_limit(limit)
    known = snapshot.current()
    theirs = [
        failures
        for (owner, origin), failures in known.failure_topics.items()
        if owner == kept.group_id and kept.topic_id in (None, origin)
    ]
    return _read(kept.group_id, sorted(theirs, key=lambda one: one.name), limit)


def _read(group_id: int, topics: Sequence[TopicInfo], limit: int) -> PendingRetries:
    queues = [queue for one in topics for queue in one.queues]
    counts: dict[int, int] = {}
    unread: dict[int, int] = {}
    rows: list[failure_sql.WaitingRow] = []

    def read(session: Session, mine: list[int]) -> None:
        counts.update(failure_sql.count_waiting(session, queues=mine))
        rows.extend(failure_sql.list_waiting(session, queues=mine, most=limit))
        gaps = promotion_sql.read_all_gaps(session, queues=mine)
        for queue, at in reader_sql.read_positions(session, group_id=group_id, queues=mine).items():
            first = max(at.committed or 0, at.low)
            unread[queue] = left(first, at.head, gaps=gaps.get(queue, ()))

    away = dead_letters.ask(sweeping.queues_by_node(queues), read)
    rows.sort(key=lambda row: (row.due_at_ms, row.queue, row.id))
    return PendingRetries(
        tuple(_count(one, counts, unread) for one in topics),
        tuple(
            PendingRetry(attempt=row.attempt, due_at_ms=row.due_at_ms, **dead_letters.of_failed(row))
            for row in rows[:limit]
        ),
        away,
    )


def _count(topic: TopicInfo, counts: dict[int, int], unread: dict[int, int]) -> RetryCount:
    origin = snapshot.current().topics.get(topic.failure_of or 0)
    return RetryCount(
        origin.name if origin is not None else "",
        topic.name,
        sum(counts.get(queue, 0) for queue in topic.queues),
        sum(unread.get(queue, 0) for queue in topic.queues),
    )
