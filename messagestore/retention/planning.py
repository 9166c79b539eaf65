"""Retention plans: the offset to keep each queue from, and the unread messages to lose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct, structs

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.heads.time_lookup import first_at
from messagestore.pool import node_pools
from messagestore.tables import audit_sql, message_sql, node_sql, partition_sql, queue_sql
from messagestore.tables.shapes import Head, Partition, ReaderRow
from metadata.db.clock import database_now, ms
from metadata.errors import CatmqError
from metadata.groups import activity, subscribers
from metadata.groups.subscribers import ActiveSubscription
from metadata.rules.alarm_texts import alarm_text
from metadata.rules.nodes import Engine
from metadata.rules.topics import retention
from metadata.rules.topics.retention import Span
from metadata.rules.topics.states import READABLE_STATES, TopicKind
from metadata.topics.topic_rows import QueueView, TopicView

DAY_MS = 86_400_000
SLICES = 20  # parts of a table without partitions, the size of each estimated by a sample
SAMPLE = 50  # rows
ROW_BYTES = 60  # overhead of a row


class Loss(Struct, frozen=True):
    """Number of unread messages that a group loses. For broadcasting: by its slowest
    instance.
    """

    group: str
    messages: int
    active: bool = True


class QueuePlan(Struct, frozen=True):
    """A queue, and the offset `keep_from` below which its messages are removed.

    `why`: age, size, archive, or empty if nothing is removed. `partitions`: number of
    partitions to drop, None for a table without partitions. `bytes`: estimated size of
    these partitions, or of the rows. `notes`: effects of the settings in this queue.
    `blocked_by`: why a setting cannot be followed. `problem`: why the queue is not cleaned
    at all.
    """

    topic: str
    queue: int
    number: int
    node: str
    node_id: int
    low: int = 0
    head: int = 0
    keep_from: int = 0
    why: str = ""
    partitions: int | None = None
    bytes: int = 0
    unread: tuple[Loss, ...] = ()
    notes: tuple[str, ...] = ()
    blocked_by: str | None = None
    problem: str | None = None

    @property
    def messages(self) -> int:
        """Number of offsets to remove."""
        return self.keep_from - self.low


class _Readers(Struct, frozen=True):
    """Groups of a topic, their rows by queue, and the active ones, whose unread messages
    stay.
    """

    groups: Mapping[int, ActiveSubscription]
    rows: Mapping[int, Sequence[ReaderRow]]
    active: frozenset[int]

    def kept_for(self, queue: int) -> list[int]:
        """Return the committed offsets of active groups."""
        return [
            row.committed for row in self.rows.get(queue, ()) if row.group_id in self.active
        ]

    def positions(self, queue: int) -> list[int]:
        """Return the committed offsets of all groups."""
        return [row.committed for row in self.rows.get(queue, ())]

    def losses(self, queue: int, low: int, keep_from: int) -> tuple[Loss, ...]:
        """Return the unread messages in low … keep_from - 1 of each group that has any."""
        worst: dict[int, int] = {}
        for row in self.rows.get(queue, ()):
            lost = retention.count_lost(
                committed=row.committed, low=low, keep_from=keep_from
            )
            worst[row.group_id] = max(lost, worst.get(row.group_id, 0))
        return tuple(
            Loss(self.groups[group].group, lost, group in self.active)
            for group, lost in sorted(worst.items())
            if lost
        )


def plan(topic: TopicView, *, record: bool, jumped: str | None = None) -> list[QueuePlan]:
    """Return the plans of a topic's queues.

    `record`: save the progress of its groups, which decides whether they are active.
    `jumped`: why the clock cannot be trusted, in which case nothing is removed by age. If a
    node does not answer or a table cannot be read, the plan has a `problem`. Raises
    MetadataUnavailable.
    """
    return _plan_queues(topic, record, lambda planner: planner.plan(), jumped)


def purge_plan(topic: TopicView, upto: Mapping[int, int]) -> list[QueuePlan]:
    """Return plans that keep each queue from an offset on.

    `upto`: {queue: offset}. A queue that is not in it is kept completely. Raises
    MetadataUnavailable.
    """
    return _plan_queues(
        topic,
        False,
        lambda planner: planner.plan_purge(upto.get(planner.blank.queue, 0)),
        None,
    )


def _plan_queues(
    topic: TopicView,
    record: bool,
    make_plan: Callable[[_Planner], QueuePlan],
    jumped: str | None,
) -> list[QueuePlan]:
    queues = [
        queue_view for queue_view in topic.queues if queue_view.state in READABLE_STATES
    ]
    readers, skipped = _read_readers(topic, queues, record)
    plans = []
    for queue in queues:
        blank = QueuePlan(
            topic.name,
            queue.queue,
            queue.number,
            queue.node,
            queue.node_id,
            blocked_by=jumped,
        )
        # Without the positions of its readers, unread messages could be removed: leave the
        # queue alone.
        if queue.node in skipped:
            plans.append(
                structs.replace(blank, blocked_by=None, problem=skipped[queue.node])
            )
            continue
        try:
            with node_pools.node(queue.node_id).reading() as session:
                head = queue_sql.read_head(session, queue=blank.queue)
                problem = None
                # A wrong head row needs an operator, so the queue is not cleaned.
                if head is None:
                    problem = alarm_text("no_head", queue=str(blank.queue))
                elif not 0 <= head.low <= head.head:
                    problem = alarm_text(
                        "start_outside", start=str(head.low), end=str(head.head)
                    )
                if head is None or problem is not None:
                    plans.append(structs.replace(blank, problem=problem))
                    continue
                existing = partition_sql.list_partitions(session, queue=blank.queue)
                planner = _Planner(session, topic, blank, readers, head, existing)
                plans.append(make_plan(planner))
        except CatmqError as error:
            plans.append(structs.replace(blank, blocked_by=None, problem=error.detail))
    return plans


def _read_readers(
    topic: TopicView, queues: Sequence[QueueView], record: bool
) -> tuple[_Readers, dict[str, str]]:
    """Return the readers of a topic, and {node: reason} for nodes whose readers cannot be
    read.
    """
    groups = {
        reading.group_id: reading for reading in subscribers.active_subscriptions(topic.id)
    }
    rows: dict[int, list[ReaderRow]] = {}

    def read(session: Session, node_queues: Sequence[QueueView]) -> None:
        for row in audit_sql.list_readers(
            session, queues=[view.queue for view in node_queues]
        ):
            # A row with an older epoch is of an earlier subscription of the group.
            if row.group_id in groups and row.epoch >= groups[row.group_id].base_epoch:
                rows.setdefault(row.queue, []).append(row)

    skipped = sweeping.query_nodes(
        sweeping.group_by_node(queues), read, subject=f"Readers of topic {topic.name}"
    )
    progress = dict.fromkeys((reading.id for reading in groups.values()), 0)
    for row in (row for queue_rows in rows.values() for row in queue_rows):
        progress[groups[row.group_id].id] += row.committed
    # Without the rows of a node the sums would be others than last time, and groups without
    # any commit would look active. So no progress is compared or recorded then.
    active_ids = activity.find_active_subscriptions(
        topic_id=topic.id, progress={} if skipped else progress, record=record
    )
    active = frozenset(
        reading.group_id for reading in groups.values() if reading.id in active_ids
    )
    return _Readers(groups, rows, active), skipped


@dataclass(slots=True)
class _Planner:
    """Computes the plan of a queue. `blank`: a plan without offsets."""

    session: Session
    topic: TopicView
    blank: QueuePlan
    readers: _Readers
    head: Head
    partitions: Sequence[Partition]
    notes: list[str] = field(default_factory=list)

    def plan(self) -> QueuePlan:
        low, head = self.head.low, self.head.head
        spans = self._spans()
        newest_ms = None
        if low < head:
            newest_ms = message_sql.read_stored_at_ms(
                self.session, queue=self.blank.queue, offset=head - 1
            )
        node_ms, metadata_ms = node_sql.now_ms(self.session), ms(database_now())
        # With a wrong clock no age is known, so nothing is removed by age.
        problem = self.blank.blocked_by or retention.clock_problem(
            now_ms=node_ms, reference_ms=metadata_ms, newest_ms=newest_ms
        )
        untrusted = None if problem is None else alarm_text("not_by_age", why=problem)
        by_age = low if untrusted else self._by_age()
        by_size = self._by_size(spans)
        # Each limit removes messages on its own, so the higher offset counts.
        keep_from = min(max(low, by_age, by_size), head)
        why = "" if keep_from == low else "age" if by_age >= by_size else "size"
        return self._build(keep_from, why, spans, blocked_by=untrusted)

    def plan_purge(self, upto: int) -> QueuePlan:
        """Return the plan to remove messages below `upto` that all active groups have read."""
        low, head = self.head.low, self.head.head
        unread = min(self.readers.kept_for(self.blank.queue), default=head)
        keep_from = max(low, min(upto, head, unread))
        if keep_from < min(upto, head):
            count = min(upto, head) - keep_from
            self.notes.append(
                f"{count:,} archived messages stay: an active group has not read them"
            )
        return self._build(
            keep_from, "archive" if keep_from > low else "", self._spans(), blocked_by=None
        )

    def _build(
        self, keep_from: int, why: str, spans: Sequence[Span], *, blocked_by: str | None
    ) -> QueuePlan:
        low, head = self.head.low, self.head.head
        # The last partition is written to, so it is never dropped.
        dropped = [p for p in self.partitions[:-1] if p.end <= keep_from]
        # Of a span that is removed in part, its bytes count in proportion.
        row_bytes = sum(
            int(
                span.bytes
                * max(0.0, min(1.0, (keep_from - span.first) / (span.end - span.first)))
            )
            for span in spans
        )
        return structs.replace(
            self.blank,
            low=low,
            head=head,
            keep_from=keep_from,
            why=why,
            partitions=len(dropped) if self.partitions else None,
            bytes=sum(p.bytes for p in dropped) if self.partitions else row_bytes,
            unread=self.readers.losses(self.blank.queue, low, keep_from),
            notes=tuple(self.notes),
            blocked_by=blocked_by,
        )

    def _spans(self) -> list[Span]:
        """Return the spans of served messages with their sizes, in rising order.

        A span is a partition or, without partitions, a slice of equal width. The last is
        written to.
        """
        low, head = self.head.low, self.head.head
        if self.partitions:
            served = [
                Span(max(p.first, low), min(p.end, head), p.bytes) for p in self.partitions
            ]
            return [span for span in served if span.first < span.end]
        if self.session.engine == Engine.MYSQL:
            self.notes.append("its table has no partitions, so rows are deleted in batches")
        width = max(1, -(-(head - low) // SLICES))
        spans = []
        for first in range(low, head, width):
            end = min(first + width, head)
            # The size is estimated from the first rows: reading all would take too long.
            rows, size = partition_sql.measure_rows(
                self.session,
                queue=self.blank.queue,
                first=first,
                end=min(first + SAMPLE, end),
            )
            row_bytes = size / rows + ROW_BYTES if rows else 0.0
            spans.append(Span(first, end, int(row_bytes * (end - first))))
        return spans

    def _older_than(self, days: int) -> int:
        """Return the first offset that is not older than `days`."""
        at_ms = node_sql.now_ms(self.session) - days * DAY_MS
        bounds = self.head.low, self.head.head
        return first_at(self.session, queue=self.blank.queue, bounds=bounds, at_ms=at_ms)

    def _by_age(self) -> int:
        """Return the offset to keep from by age, with the unread messages of active groups."""
        expired = self._older_than(self.topic.retention_days)
        # A retry that its group has not read is never removed, however old.
        if self.topic.kind == TopicKind.FAILURE:
            return min([expired, *self.readers.positions(self.blank.queue)])
        days = self.topic.keep_unread_days
        unread = self.readers.kept_for(self.blank.queue)
        if days <= self.topic.retention_days or min(unread, default=expired) >= expired:
            return expired  # keep_unread_days has no effect here; 0 turns it off
        keep_from = retention.keep_from_by_age(
            expired=expired, long_expired=self._older_than(days), unread=unread
        )
        if keep_from < expired:
            count = expired - max(keep_from, self.head.low)
            self.notes.append(
                f"{count:,} older messages stay up to {days} days: a group has not read them"
            )
        return keep_from

    def _by_size(self, spans: Sequence[Span]) -> int:
        """Return the offset to keep from by size. Every queue of the topic has an equal
        share.
        """
        topic_bytes = self.topic.retention_bytes
        if topic_bytes is None or not spans:
            return 0
        share = topic_bytes // max(
            1, sum(queue.state in READABLE_STATES for queue in self.topic.queues)
        )
        last_span, by_partition = spans[-1], bool(self.partitions)
        smallest = (
            last_span.bytes
            if by_partition
            else last_span.bytes // (last_span.end - last_span.first)
        )
        if smallest > share:
            subject = (
                "the part it is written to takes"
                if by_partition
                else "a message takes about"
            )
            self.notes.append(
                f"retention_bytes leaves it {share:,} bytes, {subject} {smallest:,}: that stays"
            )
        return retention.keep_from_by_size(spans, most=share, whole=by_partition)
