"""Messages to keep of each queue of a topic, and groups that have not read what goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.heads.time_lookup import first_at
from messagestore.pool import node_pools
from messagestore.tables import audit_sql, message_sql, node_sql, partition_sql, queue_sql
from messagestore.tables.shapes import Head, Partition, ReaderRow
from metadata.db.clock import database_now, ms
from metadata.errors import CatmqError
from metadata.groups import activity, subscribers
from metadata.groups.subscribers import Reading
from metadata.rules.alarm_texts import say
from metadata.rules.topics import retention
from metadata.rules.topics.retention import Span
from metadata.topics.topic_rows import QueueView, TopicView

DAY_MS = 86_400_000
SLICES = 20  # of a table without partitions, each weighed by a sample
SAMPLE = 50  # rows
ROW_BYTES = 60  # what a row costs beside what it holds
_KEPT = ("read_write", "read_only")


@dataclass(frozen=True, slots=True)
class Loss:
    """Number of messages that go and a group has not read, a broadcasting one's slowest instance."""

    group: str
    messages: int
    active: bool = True


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """A queue and the offset to keep it from; `why` is age, size, archive, or empty if nothing goes.

    `bytes` is an estimate of what is below that offset, of whole `partitions` or, without any, of rows.
    `notes` tell how the settings work out here, `blocked_by` why one of them cannot be followed; with a
    `problem` the queue is left alone.
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
        return self.keep_from - self.low


@dataclass(frozen=True, slots=True)
class _Readers:
    """Readers of a topic, their positions in each queue, and for whom unread messages are kept longer."""

    groups: Mapping[int, Reading]
    rows: Mapping[int, Sequence[ReaderRow]]
    active: frozenset[int]

    def kept_for(self, queue: int) -> list[int]:
        return [row.committed for row in self.rows.get(queue, ()) if row.group_id in self.active]

    def positions(self, queue: int) -> list[int]:
        return [row.committed for row in self.rows.get(queue, ())]

    def losses(self, queue: int, low: int, keep_from: int) -> tuple[Loss, ...]:
        worst: dict[int, int] = {}
        for row in self.rows.get(queue, ()):
            lost = retention.lost(committed=row.committed, low=low, keep_from=keep_from)
            worst[row.group_id] = max(lost, worst.get(row.group_id, 0))
        return tuple(
            Loss(self.groups[group].group, lost, group in self.active)
            for group, lost in sorted(worst.items())
            if lost
        )


def plan(topic: TopicView, *, record: bool, jumped: str | None = None) -> list[QueuePlan]:
    """The plans of a topic's queues, by number; `record`: keep what was learned of its groups.

    `jumped`: why the clock cannot be trusted, so that nothing goes by age.

    Raises MetadataUnavailable. A node that does not answer, or a table that cannot be read, is a `problem`.
    """
    return _each(topic, record, lambda planner: planner.plan(), jumped)


def purge_plan(topic: TopicView, upto: Mapping[int, int]) -> list[QueuePlan]:
    """The plans that keep each queue from an offset on, {queue: offset}; a queue not named is kept whole.

    Raises what `plan` raises.
    """
    return _each(topic, False, lambda planner: planner.plan_purge(upto.get(planner.blank.queue, 0)), None)


def _each(
    topic: TopicView, record: bool, wanted: Callable[[_Planner], QueuePlan], jumped: str | None
) -> list[QueuePlan]:
    queues = [one for one in topic.queues if one.state in _KEPT]
    readers, skipped = _readers(topic, queues, record)
    plans = []
    for queue in queues:
        blank = QueuePlan(topic.name, queue.queue, queue.number, queue.node, queue.node_id, blocked_by=jumped)
        if queue.node in skipped:
            plans.append(replace(blank, blocked_by=None, problem=skipped[queue.node]))
            continue
        try:
            with node_pools.node(queue.node_id).reading() as session:
                found = _planner(session, topic, blank, readers)
                plans.append(wanted(found) if isinstance(found, _Planner) else found)
        except CatmqError as error:
            plans.append(replace(blank, blocked_by=None, problem=error.detail))
    return plans


def _readers(topic: TopicView, queues: Sequence[QueueView], record: bool) -> tuple[_Readers, dict[str, str]]:
    """The readers of a topic, and why those on some nodes are not known."""
    groups = {one.group_id: one for one in subscribers.readings(topic.id)}
    rows: dict[int, list[ReaderRow]] = {}

    def read(session: Session, mine: Sequence[QueueView]) -> None:
        for row in audit_sql.list_readers(session, queues=[one.queue for one in mine]):
            if row.group_id in groups and row.epoch >= groups[row.group_id].base_epoch:
                rows.setdefault(row.queue, []).append(row)

    skipped = sweeping.ask(sweeping.by_node(queues), read, what=f"Readers of topic {topic.name}")
    sums = dict.fromkeys((one.id for one in groups.values()), 0)
    for row in (row for of_queue in rows.values() for row in of_queue):
        sums[groups[row.group_id].id] += row.committed
    found = activity.active(topic_id=topic.id, progress={} if skipped else sums, record=record)
    active = frozenset(one.group_id for one in groups.values() if one.id in found)
    return _Readers(groups, rows, active), skipped


def _planner(session: Session, topic: TopicView, blank: QueuePlan, readers: _Readers) -> _Planner | QueuePlan:
    """Return the planner of a queue, or the plan of one that nothing can be planned for."""
    head = queue_sql.read_head(session, queue=blank.queue)
    if head is None:
        return replace(blank, problem=say("no_head", queue=str(blank.queue)))
    if not 0 <= head.low <= head.head:
        return replace(blank, problem=say("start_outside", start=str(head.low), end=str(head.head)))
    parts = partition_sql.list_partitions(session, queue=blank.queue)
    return _Planner(session, topic, blank, readers, head, parts)


@dataclass(slots=True)
class _Planner:
    session: Session
    topic: TopicView
    blank: QueuePlan
    readers: _Readers
    head: Head
    parts: Sequence[Partition]
    notes: list[str] = field(default_factory=list)

    def plan(self) -> QueuePlan:
        low, head = self.head.low, self.head.head
        spans = self._spans()
        untrusted = self._untrusted_clock()
        by_age = low if untrusted else self._by_age()
        by_size = self._by_size(spans)
        keep_from = min(max(low, by_age, by_size), head)
        why = "" if keep_from == low else "age" if by_age >= by_size else "size"
        return self._made(keep_from, why, spans, blocked_by=untrusted)

    def plan_purge(self, upto: int) -> QueuePlan:
        """The plan to keep from an offset on, without what an active group has not read."""
        low, head = self.head.low, self.head.head
        unread = min(self.readers.kept_for(self.blank.queue), default=head)
        keep_from = max(low, min(upto, head, unread))
        if keep_from < min(upto, head):
            count = min(upto, head) - keep_from
            self.notes.append(f"{count:,} archived messages stay: an active group has not read them")
        return self._made(keep_from, "archive" if keep_from > low else "", self._spans(), blocked_by=None)

    def _made(self, keep_from: int, why: str, spans: Sequence[Span], *, blocked_by: str | None) -> QueuePlan:
        low, head = self.head.low, self.head.head
        dropped = [one for one in self.parts[:-1] if one.end <= keep_from]
        of_rows = sum(int(one.bytes * _share(one, keep_from)) for one in spans)
        return replace(
            self.blank,
            low=low,
            head=head,
            keep_from=keep_from,
            why=why,
            partitions=len(dropped) if self.parts else None,
            bytes=sum(one.bytes for one in dropped) if self.parts else of_rows,
            unread=self.readers.losses(self.blank.queue, low, keep_from),
            notes=tuple(self.notes),
            blocked_by=blocked_by,
        )

    def _spans(self) -> list[Span]:
        """Return the spans that are kept now, rising, with their bytes; the last one is written to."""
        low, head = self.head.low, self.head.head
        if self.parts:
            cut = [Span(max(one.first, low), min(one.end, head), one.bytes) for one in self.parts]
            return [one for one in cut if one.first < one.end]
        if self.session.engine == "mysql":
            self.notes.append("its table has no partitions, so rows are deleted in batches")
        width = max(1, -(-(head - low) // SLICES))
        return [self._weighed(first, min(first + width, head)) for first in range(low, head, width)]

    def _weighed(self, first: int, end: int) -> Span:
        last = min(first + SAMPLE, end)
        rows, size = partition_sql.row_bytes(self.session, queue=self.blank.queue, first=first, end=last)
        return Span(first, end, int((size / rows + ROW_BYTES) * (end - first)) if rows else 0)

    def _untrusted_clock(self) -> str | None:
        newest = None
        if self.head.low < self.head.head:
            newest = message_sql.stored_at_ms(self.session, queue=self.blank.queue, offset=self.head.head - 1)
        now, reference = node_sql.now_ms(self.session), ms(database_now())
        problem = self.blank.blocked_by or retention.clock_problem(
            now_ms=now, reference_ms=reference, newest_ms=newest
        )
        return None if problem is None else say("not_by_age", why=problem)

    def _older_than(self, days: int) -> int:
        at_ms = node_sql.now_ms(self.session) - days * DAY_MS
        bounds = self.head.low, self.head.head
        return first_at(self.session, queue=self.blank.queue, bounds=bounds, at_ms=at_ms)

    def _by_age(self) -> int:
        expired = self._older_than(self.topic.retention_days)
        if self.topic.kind == "failure":  # a retry that nobody has read never goes
            return min([expired, *self.readers.positions(self.blank.queue)])
        days = self.topic.keep_unread_days
        unread = self.readers.kept_for(self.blank.queue)
        if days <= self.topic.retention_days or min(unread, default=expired) >= expired:
            return expired  # 0 days: off
        keep = retention.by_age(expired=expired, long_expired=self._older_than(days), unread=unread)
        if keep < expired:
            count = expired - max(keep, self.head.low)
            self.notes.append(f"{count:,} older messages stay up to {days} days: a group has not read them")
        return keep

    def _by_size(self, spans: Sequence[Span]) -> int:
        """The offset to keep from by size; every queue of the topic has an equal share."""
        most = self.topic.retention_bytes
        if most is None or not spans:
            return 0
        share = most // max(1, sum(one.state in _KEPT for one in self.topic.queues))
        last, whole = spans[-1], bool(self.parts)
        least = last.bytes if whole else last.bytes // (last.end - last.first)
        if least > share:
            what = "the part it is written to takes" if whole else "a message takes about"
            self.notes.append(f"retention_bytes leaves it {share:,} bytes, {what} {least:,}: that stays")
        return retention.by_size(spans, most=share, whole=whole)


def _share(span: Span, below: int) -> float:
    """Share of a span that lies below an offset, 0 to 1."""
    return max(0.0, min(1.0, (below - span.first) / (span.end - span.first)))
