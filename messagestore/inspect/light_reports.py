"""The light reports: read from heads, partitions and a few rows, found by halving; nothing
is scanned.

Spark jobs make the same reports with what only a scan tells: exact bytes, keys, skew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from messagestore.engine.mysql_session import Session
from messagestore.heads.time_lookup import first_at
from messagestore.nodes import disks
from messagestore.pool import node_pools
from messagestore.tables import message_sql, node_sql, partition_sql, queue_sql
from messagestore.tables.shapes import Head
from metadata.actors import Actor
from metadata.db import access
from metadata.errors import CatmqError, Invalid
from metadata.grouping import grouped
from metadata.groups import subscribers
from metadata.monitoring import metrics_history
from metadata.rules import reports
from metadata.topics import topic_rows
from metadata.topics.topic_rows import QueueView, TopicView

DAY_MS = 86_400_000
Row = dict[str, Any]
Look = Callable[[Session, Head], list[Row]]


def make_report(*, name: str, topic: str | None, days: int, actor: Actor) -> list[Row]:
    """The rows of a report. Needs `admin` on each topic it tells of, `capacity` on
    everything.

    Raises Invalid, NotFound. A queue whose node does not answer has a row that says so, in
    `problem`.
    """
    if name not in REPORTS:
        raise Invalid.field(
            "name", f"{name} is not a report; choose from {', '.join(REPORTS)}"
        )
    if not 1 <= days <= 400:
        raise Invalid.field("days", f"{days} is not within 1 and 400")
    if name == "capacity":  # it tells of whole nodes
        access.require_everything(actor, name, what="report")
    return list(REPORTS[name](_chosen(topic, actor), days))


def _chosen(topic: str | None, actor: Actor) -> list[TopicView]:
    chosen = (
        topic_rows.list_ready()
        if topic is None
        else [topic_rows.find_topic(name=topic, actor=actor)]
    )
    for one in chosen:
        access.require(actor, "admin", one.name)
    return chosen


def find_unreadable_queues(*, topic: str | None, actor: Actor) -> dict[int, str]:
    """{queue: why it cannot be read} where a node does not answer, or is quarantined. Needs
    `admin`.
    """
    node_of = {
        queue.queue: queue.node_id for one in _chosen(topic, actor) for queue in one.queues
    }
    why = {node_id: _blocked_by(node_id) for node_id in sorted(set(node_of.values()))}
    return {queue: why[node_id] for queue, node_id in node_of.items() if why[node_id]}


def _blocked_by(node_id: int) -> str:
    node = node_pools.node(node_id)
    if node.info.quarantined:
        return f"Node {node.info.name} is quarantined: {node.info.quarantined}"
    try:
        with node.reading() as session:
            node_sql.now_ms(session)
    except CatmqError as error:
        return error.detail
    return ""


def volume(chosen: Iterable[TopicView], days: int) -> Iterator[Row]:
    """Messages by topic, day (UTC) and queue."""
    for topic in chosen:
        for queue in topic.queues:
            yield from _of_queue(topic, queue, _by_day(queue, days))


def size_and_expiry(chosen: Iterable[TopicView], days: int) -> Iterator[Row]:
    """Yield the size and age of each queue, and how much of it expires within so many days."""
    for topic in chosen:
        for queue in topic.queues:
            yield from _of_queue(topic, queue, _size(topic, queue, days))


def rate_topics(chosen: Iterable[TopicView], days: int) -> Iterator[Row]:
    """Yield a verdict on each topic: nobody sends to it or reads it, or it has too many or
    too few queues.
    """
    for topic in chosen:
        rows = [
            one
            for queue in topic.queues
            for one in _of_queue(topic, queue, _recent(queue, days))
        ]
        problems = [row["problem"] for row in rows if row["problem"]]
        sent = sum(row.get("messages", 0) for row in rows)
        groups = len(subscribers.active_subscriptions(topic.id))
        held = sum(row.get("held", 0) for row in rows)
        verdict = reports.judge_topic(
            sent=sent, groups=groups, queues=len(topic.queues), days=days
        )
        yield {
            "topic": topic.name,
            "queues": len(topic.queues),
            "groups": groups,
            "messages": sent,
            "held": held,
            "verdict": "" if problems else verdict,
            "problem": problems[0] if problems else "",
        }


def capacity(chosen: Iterable[TopicView], days: int) -> Iterator[Row]:
    """Yield how full each node is, what it gets a day, and when it is full."""
    growth: dict[int, list[Row]] = {}
    for topic in chosen:
        for queue in topic.queues:
            growth.setdefault(queue.node_id, []).extend(
                _of_queue(topic, queue, _recent(queue, days))
            )
    for node_id, rows in sorted(growth.items()):
        yield _node(node_id, rows, days)


def latency(chosen: Iterable[TopicView], days: int) -> Iterator[Row]:
    """Yield how long messages waited for each group: the age of its oldest unread one,
    minute by minute.

    Of more than six hours in steps of a quarter, of more than a week in days: as the series
    are kept.
    """
    for topic in chosen:
        for group in subscribers.active_subscriptions(topic.id):
            points = metrics_history.read_points(
                for_s=days * 86_400, topic_id=topic.id, group_id=group.group_id
            )
            ages = sorted(point.lag_ms for point in points if point.lag_ms is not None)
            yield {
                "topic": topic.name,
                "group": group.group,
                "messages": sum(point.pulled for point in points),
                "waited_p50_ms": reports.percentile(ages, 50),
                "waited_p99_ms": reports.percentile(ages, 99),
                "waited_most_ms": ages[-1] if ages else None,
                "problem": "" if ages else "nothing was measured",
            }


def departments(chosen: Iterable[TopicView], days: int) -> Iterator[Row]:
    """Yield what the topics of each department got and hold, and how many groups read them."""
    for department, mine in sorted(
        grouped((one.department, one) for one in chosen).items()
    ):
        queues = [(topic, queue) for topic in mine for queue in topic.queues]
        rows = [
            row
            for topic, queue in queues
            for row in _of_queue(topic, queue, _recent(queue, days))
        ]
        problems = [row["problem"] for row in rows if row["problem"]]
        yield {
            "department": department,
            "topics": len(mine),
            "queues": len(queues),
            "groups": len(
                {
                    one.group_id
                    for topic in mine
                    for one in subscribers.active_subscriptions(topic.id)
                }
            ),
            "messages": sum(row.get("messages", 0) for row in rows),
            "bytes": sum(row.get("bytes", 0) for row in rows),
            "held": sum(row.get("held", 0) for row in rows),
            "held_bytes": sum(row.get("held_bytes", 0) for row in rows),
            "problem": problems[0] if problems else "",
        }


REPORTS: Mapping[str, Callable[[Iterable[TopicView], int], Iterator[Row]]] = {
    "volume": volume,
    "size_and_expiry": size_and_expiry,
    "topics": rate_topics,
    "capacity": capacity,
    "latency": latency,
    "departments": departments,
}


def _of_queue(topic: TopicView, queue: QueueView, look: Look) -> Iterator[Row]:
    """The rows of a queue, each with where it is."""
    place = {"topic": topic.name, "queue": queue.queue, "node": queue.node}
    try:
        with node_pools.node(queue.node_id).reading() as session:
            head = queue_sql.read_head(session, queue=queue.queue)
            found = list(look(session, head)) if head is not None else []
    except CatmqError as error:
        yield {**place, "problem": error.detail}
        return
    for row in found:
        yield {**place, **row, "problem": ""}


def _by_day(queue: QueueView, days: int) -> Look:
    """Return a look that counts what a queue got on each of the last days."""

    def look(session: Session, head: Head) -> list[Row]:
        last = node_sql.now_ms(session) // DAY_MS
        first, bounds = last - days + 1, (head.low, head.head)
        edges = [
            first_at(session, queue=queue.queue, bounds=bounds, at_ms=day * DAY_MS)
            for day in range(first, last + 1)
        ]
        counts = [end - begin for begin, end in pairwise([*edges, head.head])]
        return [
            {"day": reports.day_name(first + number), "messages": count}
            for number, count in enumerate(counts)
            if count
        ]

    return look


def _recent(queue: QueueView, days: int) -> Look:
    """Return a look that counts what a queue got in the last days."""

    def look(session: Session, head: Head) -> list[Row]:
        since = node_sql.now_ms(session) - days * DAY_MS
        first = first_at(
            session, queue=queue.queue, bounds=(head.low, head.head), at_ms=since
        )
        parts = partition_sql.list_partitions(session, queue=queue.queue)
        rows = sum(
            min(one.end, head.head) - one.first for one in parts if one.first < head.head
        )
        size = sum(one.bytes for one in parts if one.first < head.head)
        each = size / rows if rows else _row_bytes(session, queue, head)
        messages, held = head.head - first, head.head - head.low
        sizes = {"bytes": int(messages * each), "held_bytes": int(held * each)}
        return [{"messages": messages, "held": held, **sizes}]

    return look


def _row_bytes(session: Session, queue: QueueView, head: Head) -> float:
    """About what a row takes, by the newest ones."""
    first = max(head.low, head.head - 100)
    rows, size = partition_sql.measure_rows(
        session, queue=queue.queue, first=first, end=head.head
    )
    return size / rows if rows else 0.0


def _size(topic: TopicView, queue: QueueView, days: int) -> Look:
    """Return a look that measures what a queue holds, and what of it expires."""

    def look(session: Session, head: Head) -> list[Row]:
        limit = node_sql.now_ms(session) - (topic.retention_days - days) * DAY_MS
        kept = first_at(
            session, queue=queue.queue, bounds=(head.low, head.head), at_ms=limit
        )
        (recent,) = _recent(queue, 400)(session, head)
        row = {"messages": head.head - head.low, "bytes": recent["bytes"]}
        row |= {"oldest_at_ms": None, "newest_at_ms": None}
        if head.low < head.head:
            row["oldest_at_ms"] = message_sql.read_stored_at_ms(
                session, queue=queue.queue, offset=head.low
            )
            row["newest_at_ms"] = message_sql.read_stored_at_ms(
                session, queue=queue.queue, offset=head.head - 1
            )
        return [
            {**row, "retention_days": topic.retention_days, "expiring": kept - head.low}
        ]

    return look


def _node(node_id: int, rows: Iterable[Row], days: int) -> Row:
    found = list(rows)
    problems = [row["problem"] for row in found if row["problem"]]
    node = node_pools.node(node_id)
    space = None
    try:
        with node.reading() as session:
            space = disks.measure(session, node.info)
    except CatmqError as error:
        problems.append(error.detail)
    daily = sum(row.get("bytes", 0) for row in found) / days
    return {
        "node": node.info.name,
        "messages_a_day": sum(row.get("messages", 0) for row in found) / days,
        "bytes_a_day": daily,
        "total_bytes": space.total if space else None,
        "free_bytes": space.free if space else None,
        "days_until_full": reports.days_until_full(space.free, daily) if space else None,
        "problem": problems[0] if problems else "",
    }
