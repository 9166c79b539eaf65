"""Reports from heads, partitions and a few rows that a binary search finds. Nothing is
scanned.

Spark jobs make the same reports with figures that need a scan: exact bytes, keys, skew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
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
from metadata.rules.rights import Right
from metadata.topics import topic_rows
from metadata.topics.topic_rows import QueueView, TopicView

DAY_MS = 86_400_000
Row = dict[str, Any]
Measure = Callable[[Session, Head, QueueView, int], list[Row]]


def make_report(*, name: str, topic: str | None, days: int, actor: Actor) -> list[Row]:
    """Return the rows of a report.

    Needs `admin` on each topic in it, and on everything for `capacity`. Raises Invalid,
    NotFound. A queue whose node does not answer has a row with the reason in `problem`.
    """
    if name not in REPORTS:
        raise Invalid.field(
            "name", f"{name} is not a report; choose from {', '.join(REPORTS)}"
        )
    if not 1 <= days <= 400:
        raise Invalid.field("days", f"{days} is not within 1 and 400")
    if name == "capacity":
        # It shows whole nodes, with the messages of all topics on them.
        access.require_everything(actor, name, what="report")
    return list(REPORTS[name](_choose_topics(topic, actor), days))


def _choose_topics(topic: str | None, actor: Actor) -> list[TopicView]:
    chosen = (
        topic_rows.list_ready()
        if topic is None
        else [topic_rows.find_topic(name=topic, actor=actor)]
    )
    for view in chosen:
        access.require(actor, Right.ADMIN, view.name)
    return chosen


def find_unreadable_queues(*, topic: str | None, actor: Actor) -> dict[int, str]:
    """Return {queue: reason} of queues whose node does not answer or is quarantined.

    Needs `admin`.
    """
    node_by_queue = {
        queue.queue: queue.node_id
        for view in _choose_topics(topic, actor)
        for queue in view.queues
    }
    reasons = {}
    # A check per node: its queues are on the same server.
    for node_id in sorted(set(node_by_queue.values())):
        node = node_pools.node(node_id)
        if node.info.quarantined:
            reasons[node_id] = (
                f"Node {node.info.name} is quarantined: {node.info.quarantined}"
            )
            continue
        try:
            with node.reading() as session:
                node_sql.now_ms(session)
        except CatmqError as error:
            reasons[node_id] = error.detail
    return {
        queue: reasons[node_id]
        for queue, node_id in node_by_queue.items()
        if reasons.get(node_id)
    }


def volume(chosen: Iterable[TopicView], days: int) -> Iterator[Row]:
    """Yield the number of messages by topic, queue and day (UTC)."""
    for topic in chosen:
        for queue in topic.queues:
            yield from _rows_of_queue(topic, queue, days, _count_by_day)


def size_and_expiry(chosen: Iterable[TopicView], days: int) -> Iterator[Row]:
    """Yield size and age of each queue, and how many messages expire within `days`."""
    for topic in chosen:
        measure = partial(_measure_size, retention_days=topic.retention_days)
        for queue in topic.queues:
            yield from _rows_of_queue(topic, queue, days, measure)


def rate_topics(chosen: Iterable[TopicView], days: int) -> Iterator[Row]:
    """Yield a verdict on each topic: unused, not read, or too many or too few queues."""
    for topic in chosen:
        rows = [
            row
            for queue in topic.queues
            for row in _rows_of_queue(topic, queue, days, _measure_recent)
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
    """Yield for each node how full it is, how much it receives a day, and when it will be
    full.
    """
    rows_by_node: dict[int, list[Row]] = {}
    for topic in chosen:
        for queue in topic.queues:
            rows_by_node.setdefault(queue.node_id, []).extend(
                _rows_of_queue(topic, queue, days, _measure_recent)
            )
    for node_id, rows in sorted(rows_by_node.items()):
        problems = [row["problem"] for row in rows if row["problem"]]
        node = node_pools.node(node_id)
        space = None
        try:
            with node.reading() as session:
                space = disks.measure(session, node.info)
        except CatmqError as error:
            problems.append(error.detail)
        daily = sum(row.get("bytes", 0) for row in rows) / days
        yield {
            "node": node.info.name,
            "messages_a_day": sum(row.get("messages", 0) for row in rows) / days,
            "bytes_a_day": daily,
            "total_bytes": space.total if space else None,
            "free_bytes": space.free if space else None,
            "days_until_full": (
                reports.days_until_full(space.free, daily) if space else None
            ),
            "problem": problems[0] if problems else "",
        }


def latency(chosen: Iterable[TopicView], days: int) -> Iterator[Row]:
    """Yield how long messages waited for each group: the age of its oldest unread message
    over time.

    It has a value a minute for up to six hours, a value for 15 minutes up to a week, and
    daily values for more, as the series are kept.
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
    """Yield the messages and bytes that the topics of each department received and hold, and
    the number of groups that read them.
    """
    for department, department_topics in sorted(
        grouped((topic.department, topic) for topic in chosen).items()
    ):
        queues = [(topic, queue) for topic in department_topics for queue in topic.queues]
        rows = [
            row
            for topic, queue in queues
            for row in _rows_of_queue(topic, queue, days, _measure_recent)
        ]
        problems = [row["problem"] for row in rows if row["problem"]]
        yield {
            "department": department,
            "topics": len(department_topics),
            "queues": len(queues),
            "groups": len(
                {
                    subscription.group_id
                    for topic in department_topics
                    for subscription in subscribers.active_subscriptions(topic.id)
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


def _rows_of_queue(
    topic: TopicView, queue: QueueView, days: int, measure: Measure
) -> Iterator[Row]:
    """Yield the rows that `measure` returns for a queue, with topic, queue and node."""
    labels = {"topic": topic.name, "queue": queue.queue, "node": queue.node}
    try:
        with node_pools.node(queue.node_id).reading() as session:
            head = queue_sql.read_head(session, queue=queue.queue)
            rows = measure(session, head, queue, days) if head is not None else []
    except CatmqError as error:
        # A node that is away costs its own rows, not the report.
        yield {**labels, "problem": error.detail}
        return
    for row in rows:
        yield {**labels, **row, "problem": ""}


def _count_by_day(session: Session, head: Head, queue: QueueView, days: int) -> list[Row]:
    """Count the messages a queue received on each of the last days."""
    # Days of the node's clock, because that clock set the storage times.
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


def _measure_recent(session: Session, head: Head, queue: QueueView, days: int) -> list[Row]:
    """Count the messages a queue received in the last days, and estimate their bytes."""
    since = node_sql.now_ms(session) - days * DAY_MS
    first = first_at(session, queue=queue.queue, bounds=(head.low, head.head), at_ms=since)
    partitions = partition_sql.list_partitions(session, queue=queue.queue)
    rows = sum(min(p.end, head.head) - p.first for p in partitions if p.first < head.head)
    size = sum(p.bytes for p in partitions if p.first < head.head)
    if not rows:
        # Without partitions (SQLite) the size is estimated from the newest rows.
        rows, size = partition_sql.measure_rows(
            session,
            queue=queue.queue,
            first=max(head.low, head.head - 100),
            end=head.head,
        )
    bytes_per_row = size / rows if rows else 0.0
    messages, held = head.head - first, head.head - head.low
    sizes = {
        "bytes": int(messages * bytes_per_row),
        "held_bytes": int(held * bytes_per_row),
    }
    return [{"messages": messages, "held": held, **sizes}]


def _measure_size(
    session: Session, head: Head, queue: QueueView, days: int, *, retention_days: int
) -> list[Row]:
    """Measure the messages a queue holds, and count those that expire within `days`."""
    first_kept = first_at(
        session,
        queue=queue.queue,
        bounds=(head.low, head.head),
        at_ms=node_sql.now_ms(session) - (retention_days - days) * DAY_MS,
    )
    (recent,) = _measure_recent(session, head, queue, 400)
    row = {"messages": head.head - head.low, "bytes": recent["bytes"]}
    row |= {"oldest_at_ms": None, "newest_at_ms": None}
    if head.low < head.head:
        row["oldest_at_ms"] = message_sql.read_stored_at_ms(
            session, queue=queue.queue, offset=head.low
        )
        row["newest_at_ms"] = message_sql.read_stored_at_ms(
            session, queue=queue.queue, offset=head.head - 1
        )
    return [{**row, "retention_days": retention_days, "expiring": first_kept - head.low}]
