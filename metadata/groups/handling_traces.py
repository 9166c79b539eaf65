"""Handling traces: which member handled a message, when, for how long, and with what
outcome.

Members report a sample of the messages that they handle (rules.groups.sampling). Its size
is `trace_percent` of the subscription. Reports wait in memory until a loop of each worker
writes them. Reports that cannot be written, or exceed MAX_PENDING, are dropped: a missing
trace does no harm.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Annotated

from msgspec import Meta, Struct

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
from metadata.rules.wire import Number

FLUSH_S = 5.0
KEPT_DAYS = 3
MAX_PER_GROUP = 10_000  # traces per group
MAX_PENDING = 500  # traces per process, between two flushes
MAX_SHOWN = 100  # traces per message
MAX_AGO_MS = 7 * 86_400_000  # the longest age of an attempt; longer ones are cut to this
MAX_CHARS = 200


class Attempt(Struct, frozen=True):
    """An attempt of a member to handle a message, as the member reports it.

    `attempt` is the number of failed attempts before this one. `ago_ms` is the time since the
    attempt began, `took_ms` its duration. For a retry, `queue` and `offset` are those of the
    original message.
    """

    queue: int
    offset: int
    attempt: int
    outcome: str
    ago_ms: int
    took_ms: int | None


class TraceView(Struct, frozen=True):
    """An attempt at a message that was in the sample of a group."""

    group: str
    member: Annotated[str, Meta(description="name of the member, or its instance")]
    attempt: Annotated[Number, Meta(description="failed attempts before this one")]
    outcome: Annotated[
        str, Meta(description="handled, failed, or delivered if nothing else is known")
    ]
    at_ms: Annotated[Number, Meta(description="time when it began, ms since 1970 UTC")]
    took_ms: Annotated[
        Number | None, Meta(description="how long it took; null if that is not known")
    ]


class _PendingTrace(Struct, frozen=True):
    group_id: int
    member: str | int
    attempt: Attempt
    heard_at: float  # time.monotonic() of the report


_lock = threading.Lock()
_pending: list[_PendingTrace] = []  # traces that wait to be written


def report(*, consumer: ConsumerId, attempts: Iterable[Attempt]) -> None:
    """Note attempts that a member reported. Reports of a member that left are dropped.

    If metadata is unavailable, flush() looks up the name of the member.
    """
    member: str | int | None = consumer.member_id
    # A report must not fail because of metadata: then the id of the member is kept
    # instead of its name.
    with suppress(MetadataUnavailable), reachable():
        rows = ConsumerGroupConsumer.objects.filter(pk=consumer.member_id)
        member = rows.values_list("identity", flat=True).first()
    if member is not None:
        note(group_id=consumer.group_id, member=member, attempts=attempts)


def note(*, group_id: int, member: str | int, attempts: Iterable[Attempt]) -> None:
    """Note those attempts of a member that are in the sample. `member` is its name, or the id
    of its row.
    """
    now = monotonic()
    traces = [
        _PendingTrace(group_id, member, attempt, now)
        for attempt in attempts
        if is_traced(
            attempt.queue,
            attempt.offset,
            sample_percent(group_id=group_id, queue=attempt.queue),
        )
    ]
    with _lock:
        # A full buffer drops new traces rather than growing without a bound.
        _pending.extend(traces[: MAX_PENDING - len(_pending)])


def sample_percent(*, group_id: int, queue: int) -> int:
    """Return the percentage of messages that are traced for a group in a queue.

    For a queue of a retry topic, the percentage of the original topic counts. Returns 0 if
    the group reads neither.
    """
    current = snapshot.current()
    queue_info = current.queues.get(queue)
    topic = current.topics.get(queue_info.topic_id) if queue_info is not None else None
    if topic is None:
        return 0
    return current.delivery(group_id, topic.failure_of or topic.id).trace_percent


def flush() -> int:
    """Write the waiting traces. Return their number.

    Raises MetadataUnavailable. The traces are lost then.
    """
    with _lock:
        pending = list(_pending)
        _pending.clear()
    if not pending:
        return 0
    ids = sorted({trace.member for trace in pending if isinstance(trace.member, int)})
    with reachable():
        now, written_at = database_now(), monotonic()
        # A member that has left meanwhile keeps its id instead of a name.
        members = ConsumerGroupConsumer.objects.filter(pk__in=ids)
        names: dict[str | int, str] = dict(members.values_list("pk", "identity"))
        HandlingTrace.objects.bulk_create(
            [
                HandlingTrace(
                    group_ref=trace.group_id,
                    queue_ref=trace.attempt.queue,
                    message_offset=trace.attempt.offset,
                    member=names.get(trace.member, str(trace.member))[:MAX_CHARS],
                    attempt=min(trace.attempt.attempt, 1_000_000),
                    outcome=trace.attempt.outcome,
                    # By the clock of the database, because those of members may differ.
                    at=now
                    - timedelta(
                        milliseconds=min(trace.attempt.ago_ms, MAX_AGO_MS),
                        seconds=written_at - trace.heard_at,
                    ),
                    took_ms=trace.attempt.took_ms,
                )
                for trace in pending
            ],
            batch_size=MAX_PENDING,
        )
    return len(pending)


def traces_of_message(*, queue: int, offset: int, actor: Actor) -> list[TraceView]:
    """Return the first MAX_SHOWN traces of a message, by time, in groups that the actor
    may see.
    """
    groups_by_id = snapshot.current().groups
    with reachable():
        rows = HandlingTrace.objects.filter(
            queue_ref=queue, message_offset=offset
        ).order_by("at", "pk")
        traces = list(rows[:MAX_SHOWN])
    return [
        TraceView(
            group=groups_by_id[row.group_ref].name,
            member=row.member,
            attempt=row.attempt,
            outcome=row.outcome,
            at_ms=ms(row.at),
            took_ms=row.took_ms,
        )
        for row in traces
        if row.group_ref in groups_by_id
        and access.may_see(actor, groups_by_id[row.group_ref].name)
    ]


prune = PruneRule(
    HandlingTrace.objects.all(),
    at="at",
    days=KEPT_DAYS,
    each="group_ref",
    most_each=MAX_PER_GROUP,
)
