"""Traces of how messages were handled: which member had one, when, for how long, and with
what outcome.

Members report a sample of what they handle (rules.groups.sampling), by the setting
trace_percent of their subscription. A report waits in memory; a loop of each worker writes
it. What cannot be written, or is too much, is dropped: a trace that is missing harms
nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic

from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import access
from metadata.db.clock import database_now, ms
from metadata.db.consumer_ids import ConsumerId
from metadata.db.prune import PruneRule
from metadata.db.transactions import reachable
from metadata.errors import MetadataUnavailable
from metadata.models import ConsumerGroupConsumer, HandlingTrace
from metadata.rules.groups.sampling import is_traced

FLUSH_S = 5.0
KEPT_DAYS = 3
MOST_EACH = 10_000  # traces of a group
MOST_WAITING = 500  # traces of a process, between two flushes
MOST_SHOWN = 100  # of one message
MOST_AGO_MS = 7 * 86_400_000  # what began longer ago is shown as this long ago
MOST_CHARS = 200


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt at a message, which began `ago_ms` ago; `attempt` counts the failed ones
    before it.

    Of a retry, queue and offset are those of the message that failed first.
    """

    queue: int
    offset: int
    attempt: int
    outcome: str
    ago_ms: int
    took_ms: int | None


@dataclass(frozen=True, slots=True)
class TraceView:
    """An attempt at a message, as it is kept."""

    group: str
    member: str
    attempt: int
    outcome: str
    at_ms: int
    took_ms: int | None


@dataclass(frozen=True, slots=True)
class _Waiting:
    group_id: int
    member: str | int
    attempt: Attempt
    heard_at: float  # monotonic


class _Buffer:
    """Traces that wait to be written."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()

    def add(self, found: Iterable[_Waiting]) -> None:
        with self._lock:
            for one in found:
                if len(self._waiting) < MOST_WAITING:
                    self._waiting.append(one)

    def take(self) -> list[_Waiting]:
        with self._lock:
            taken, self._waiting = list(self._waiting), deque()
        return taken


_buffer = _Buffer()


def report(*, consumer: ConsumerId, attempts: Iterable[Attempt]) -> None:
    """Take a report of a member under the name that it registered with, nothing of one that
    left.

    While metadata is away, the name is looked up when the report is written.
    """
    member: str | int | None = consumer.member_id
    with suppress(MetadataUnavailable), reachable():
        rows = ConsumerGroupConsumer.objects.filter(pk=consumer.member_id)
        member = rows.values_list("identity", flat=True).first()
    if member is not None:
        note(group_id=consumer.group_id, member=member, attempts=attempts)


def note(*, group_id: int, member: str | int, attempts: Iterable[Attempt]) -> None:
    """Keep attempts of a member, known by its name or the id of its row, so far as they are
    in the sample.
    """
    now = monotonic()
    _buffer.add(
        _Waiting(group_id, member, one, now)
        for one in attempts
        if is_traced(
            one.queue, one.offset, sample_percent(group_id=group_id, queue=one.queue)
        )
    )


def sample_percent(*, group_id: int, queue: int) -> int:
    """Return the sample of a group in a queue, that of its topic for a retry topic; 0 if it
    reads neither.
    """
    known = snapshot.current()
    found = known.queues.get(queue)
    topic = known.topics.get(found.topic_id) if found is not None else None
    if topic is None:
        return 0
    return known.delivery(group_id, topic.failure_of or topic.id).trace_percent


def flush() -> int:
    """Write what waits; return how many. A loop of every worker. Raises
    MetadataUnavailable.
    """
    waiting = _buffer.take()
    if not waiting:
        return 0
    with reachable():
        now, heard, names = database_now(), monotonic(), _names(waiting)
        HandlingTrace.objects.bulk_create(
            [
                HandlingTrace(
                    group_ref=one.group_id,
                    queue_ref=one.attempt.queue,
                    message_offset=one.attempt.offset,
                    member=names.get(one.member, str(one.member))[:MOST_CHARS],
                    attempt=min(one.attempt.attempt, 1_000_000),
                    outcome=one.attempt.outcome,
                    at=now
                    - timedelta(
                        milliseconds=min(one.attempt.ago_ms, MOST_AGO_MS),
                        seconds=heard - one.heard_at,
                    ),
                    took_ms=one.attempt.took_ms,
                )
                for one in waiting
            ],
            batch_size=MOST_WAITING,
        )
    return len(waiting)


def _names(waiting: Iterable[_Waiting]) -> dict[str | int, str]:
    """Return the names of the members that are known by an id, of those that are still
    there.
    """
    ids = {one.member for one in waiting if isinstance(one.member, int)}
    if not ids:
        return {}
    rows = ConsumerGroupConsumer.objects.filter(pk__in=sorted(ids))
    return dict(rows.values_list("pk", "identity"))


def traces_of_message(*, queue: int, offset: int, actor: Actor) -> list[TraceView]:
    """Return the first MOST_SHOWN traces of a message, by time, in the groups that the
    actor sees.
    """
    known = snapshot.current().groups
    with reachable():
        rows = HandlingTrace.objects.filter(
            queue_ref=queue, message_offset=offset
        ).order_by("at", "pk")
        found = list(rows[:MOST_SHOWN])
    return [
        TraceView(
            group=known[row.group_ref].name,
            member=row.member,
            attempt=row.attempt,
            outcome=row.outcome,
            at_ms=ms(row.at),
            took_ms=row.took_ms,
        )
        for row in found
        if row.group_ref in known and access.may_see(actor, known[row.group_ref].name)
    ]


prune = PruneRule(
    HandlingTrace.objects.all(),
    at="at",
    days=KEPT_DAYS,
    each="group_ref",
    most_each=MOST_EACH,
)
