"""Series: how much went through each topic and group, minute by minute, and how far groups
were behind.

What a group *pulled* was sent to its members, perhaps twice; what it *handled* is what
their commits moved its positions past: with what they handed over as failed and what a
filter left out, without what a reset, a declared gap or retention skipped.

Every process counts in memory; a loop of each worker adds what it counted to the rows of
the current minute (`flush`), so a worker that is killed loses a few seconds of statistics
and nothing else. A job records lag; others sum minutes up and prune them (`rollups`). Times
are the database's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import F, Max, Min, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from metadata.db.clock import before, database_now, ms
from metadata.db.transactions import reachable, transactional
from metadata.models import ConsumerGroup, ConsumerGroupTopic, Sample, Topic
from metadata.monitoring.counters import SLOT_S, Count, Counters, Key

# in place of a topic: what was sent to all of them, and with ALL_GROUPS what was pulled
ALL_TOPICS = 0
ALL_GROUPS = -1
# Columns: messages of each SLOT_S of a minute.
BUCKETS = tuple(f"bucket_10s_{number}" for number in range(1, 7))
# likewise, of what a group handled
HANDLED = tuple(f"handled_{number}" for number in range(1, 7))
WRITTEN_S = 5  # after so long every process has written down what it counted
LIVE_S = 900  # a series that is no longer is told in steps of SLOT_S
MOST_POINTS = 2_000  # of one answer
_NONE_HANDLED = dict.fromkeys(("handled", *HANDLED), 0)
WHOSE = ("at", "topic_ref", "group_ref")


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a series: from `at_ms` on; what was sent, pulled and handled; lag None
    where not known.

    `count_handled` is None where an earlier version counted. `seconds` that it tells of: the last
    step is not over yet. `is_known`: somebody counted; else its zeros say nothing.
    """

    at_ms: int
    seconds: float = 60.0
    sent: int = 0
    sent_bytes: int = 0
    errors: int = 0
    pulled: int = 0
    pulled_bytes: int = 0
    handled: int | None = 0
    lag: int | None = None
    lag_ms: int | None = None
    is_known: bool = True


class Pace(NamedTuple):
    """Messages a second; `count_handled` is None where it was not counted."""

    sent: float
    pulled: float
    handled: float | None


@dataclass(frozen=True, slots=True)
class Backlog:
    """Lag of a subscription: messages, and ms since the oldest unread one was stored."""

    subscription_id: int
    group_id: int
    topic_id: int
    lag: int
    lag_ms: int


_counters = Counters()


def count_sent(*, topic_id: int, messages: int, bytes: int, errors: int = 0) -> None:
    _counters.add(topic_id, 0, Count(messages, bytes, errors))


def count_pulled(*, topic_id: int, group_id: int, messages: int, bytes: int) -> None:
    _counters.add(topic_id, group_id, Count(messages, bytes))


def count_handled(*, topic_id: int, group_id: int, messages: int) -> None:
    """Count what a commit of a group moved its position past."""
    _counters.add(topic_id, group_id, Count(handled=messages))


def group_totals() -> dict[int, tuple[int, int]]:
    """Group → messages that it pulled and handled through this process since that began."""
    return dict(_counters.totals)


def evict_groups(keep: Collection[int]) -> None:
    for group_id in [one for one in group_totals() if one not in keep]:
        _counters.totals.pop(group_id, None)


def flush() -> int:
    """Add what this process counted to the rows of its minutes; of how many topics and
    groups.

    A loop of every worker. Raises MetadataUnavailable; what was counted is kept for the
    next pass then.
    """
    counts = _counters.take()
    if not counts:
        return 0
    try:
        _write(counts)
    except BaseException:
        _counters.put_back(counts)
        raise
    return len({(topic, group) for _slot, topic, group in counts})


@transactional
def _write(counts: Mapping[Key, Count]) -> None:
    now_s = database_now().timestamp()
    _counters.learn(now_s)
    # All processes write the sums of all topics: last, so that they wait for each other
    # only then.
    by_minute = _by_minute(counts, latest=int(now_s) // SLOT_S)
    found = sorted(by_minute.items(), key=lambda one: (one[0][1] == ALL_TOPICS, one[0]))
    _make_missing([key for key, _slots in found])
    for (minute, topic, group), slots in found:
        _of(minute, topic, group).update(
            messages=F("messages") + sum(one.messages for one in slots.values()),
            bytes=F("bytes") + sum(one.bytes for one in slots.values()),
            errors=F("errors") + sum(one.errors for one in slots.values()),
            **{
                BUCKETS[slot % 6]: F(BUCKETS[slot % 6]) + one.messages
                for slot, one in slots.items()
            },
            **_handled(slots),
        )


def _handled(slots: Mapping[int, Count]) -> dict[str, Any]:
    """The columns of what was handled; a process of an earlier version may have made the
    row without them.
    """
    more = {HANDLED[slot % 6]: one.handled for slot, one in slots.items() if one.handled}
    return {
        column: Coalesce(F(column), 0) + count
        for column, count in (
            {"handled": sum(more.values())} | more if more else {}
        ).items()
    }


def _by_minute(
    counts: Mapping[Key, Count], *, latest: int
) -> dict[tuple[int, int, int], dict[int, Count]]:
    """(minute, topic, group) → counts of each ten seconds, with what all topics and groups
    come to.
    """
    found: dict[tuple[int, int, int], dict[int, Count]] = defaultdict(dict)
    for (counted, topic, group), count in counts.items():
        slot = latest if counted is None else min(counted, latest)
        for key in ((topic, group), (ALL_TOPICS, ALL_GROUPS if group else 0)):
            slots = found[slot // 6, *key]
            slots[slot] = slots.get(slot, Count()).plus(count)
    return found


def _minute(number: int) -> datetime:
    return datetime.fromtimestamp(60 * number, tz=UTC)


def _make_missing(keys: Iterable[tuple[int, int, int]]) -> None:
    """Make the rows of minutes that are not there; another process may make them at the
    same time.
    """
    wanted = set(keys)
    times = {_minute(minute) for minute, _topic, _group in wanted}
    topics = {topic for _minute, topic, _group in wanted}
    rows = Sample.objects.filter(step_s=60, at__in=times, topic_ref__in=topics)
    there = {
        (int(at.timestamp()) // 60, topic, group)
        for at, topic, group in rows.values_list(*WHOSE)
    }
    Sample.objects.bulk_create(
        [
            Sample(
                at=_minute(minute),
                topic_ref=topic,
                group_ref=group,
                **(_NONE_HANDLED if group else {}),
            )
            for minute, topic, group in sorted(wanted - there)
        ],
        ignore_conflicts=True,
        batch_size=500,
    )


def start_of_step(at: datetime, *, step_s: int) -> datetime:
    seconds = int(at.timestamp())
    return datetime.fromtimestamp(seconds - seconds % step_s, tz=UTC)


@transactional
def record_lag(found: Iterable[Backlog]) -> int:
    """Record how far subscriptions are behind, for lists and in the series; return how
    many.
    """
    now = database_now()
    minute = int(now.timestamp()) // 60
    known = [one for one in found if _note_lag(one, now)]
    _make_missing([(minute, one.topic_id, one.group_id) for one in known])
    for one in known:
        _of(minute, one.topic_id, one.group_id).update(lag=one.lag, lag_ms=one.lag_ms)
    return len(known)


def _note_lag(one: Backlog, now: datetime) -> bool:
    rows = ConsumerGroupTopic.objects.filter(pk=one.subscription_id)
    return bool(rows.update(lag=one.lag, lag_ms=one.lag_ms, lag_at=now))


@transactional
def sum_lag() -> None:
    """Record how far all groups together are behind, as their rows tell: after
    `record_lag`.
    """
    minute = int(database_now().timestamp()) // 60
    rows = ConsumerGroupTopic.objects.filter(state="ready", group__deleted_at__isnull=True)
    sums = rows.aggregate(lag=Sum("lag"), lag_ms=Max("lag_ms"))
    _make_missing([(minute, ALL_TOPICS, ALL_GROUPS)])
    _of(minute, ALL_TOPICS, ALL_GROUPS).update(**sums)


def _of(minute: int, topic: int, group: int) -> QuerySet[Sample]:
    return Sample.objects.filter(
        step_s=60, at=_minute(minute), topic_ref=topic, group_ref=group
    )


def read_points(
    *,
    for_s: int,
    topic_id: int | None = None,
    group_id: int | None = None,
    sent_to: Collection[int] = (),
    step_s: int | None = None,
) -> list[Point]:
    """The series of a topic, a group, one in the other, or all, over the last `for_s`
    seconds, oldest first.

    That of a group tells as sent what was sent to the topics `sent_to`. A step in which
    nothing was counted is a zero if a broker was there to count and the topic or group
    existed; else it is not known.

    Without `step_s` the finest step that gives at most a few hundred points. Steps of
    SLOT_S end where every process has written what it counted; of longer ones the last is
    not over yet.
    """
    step = step_s or _fit(for_s)
    row_s = max(step, 60)
    with reachable():
        now = database_now()
        recent = Sample.objects.filter(
            step_s=row_s, at__gte=start_of_step(before(now, seconds=for_s), step_s=row_s)
        )
        rows = _whose(recent, topic_id, group_id, sent_to)
        found = _slots(rows) if step == SLOT_S else _summed(rows)
        begun_ms = _begun_ms(topic_id, group_id)
        counted = _counted(recent, step_ms=1000 * row_s)
    made = []
    for at, seconds in _times_until(now, for_s, step):
        known = found.get(at) or Point(at, is_known=at - at % (1000 * row_s) in counted)
        if at + 1000 * step <= begun_ms:
            known = Point(at, is_known=False)
        made.append(replace(known, seconds=seconds))
    return made


def first_sample_age_s(
    *,
    within_s: int,
    topic_id: int | None = None,
    group_id: int | None = None,
    sent_to: Collection[int] = (),
) -> float:
    """Return the age in s of the first sample of a series in the last `within_s` seconds;
    0.0 if none.

    `within_s` is at most a day. What the topics of a group were sent before it was created
    is no sample of the group. See `read_points` for the other arguments.
    """
    with reachable():
        now = database_now()
        recent = Sample.objects.filter(step_s=60, at__gte=before(now, seconds=within_s))
        first = _whose(recent, topic_id, group_id, sent_to).aggregate(at=Min("at"))["at"]
        begun_ms = _begun_ms(topic_id, group_id)
    if first is None:
        return 0.0
    return max(0.0, (ms(now) - max(ms(first), begun_ms)) / 1000)


def _times_until(now: datetime, for_s: int, step: int) -> list[tuple[int, float]]:
    """The beginning of each step, in ms, and the seconds that it tells of."""
    last = start_of_step(
        before(now, seconds=WRITTEN_S + SLOT_S) if step == SLOT_S else now, step_s=step
    )
    first = start_of_step(before(now, seconds=for_s), step_s=step)
    count = min(int((last - first).total_seconds()) // step + 1, MOST_POINTS)
    times = [ms(last - timedelta(seconds=step * back)) for back in range(count - 1, -1, -1)]
    rest = step if step == SLOT_S else max(1.0, (now - last).total_seconds())
    return [*((at, float(step)) for at in times[:-1]), (times[-1], rest)]


def _begun_ms(topic_id: int | None, group_id: int | None) -> int:
    """The time at which a group or topic was created; 0 where that is not known, or all are
    meant.
    """
    begun = None
    if group_id is not None:
        begun = (
            ConsumerGroup.objects.filter(pk=group_id)
            .values_list("created_at", flat=True)
            .first()
        )
    elif topic_id is not None:
        begun = (
            Topic.objects.filter(pk=topic_id).values_list("created_at", flat=True).first()
        )
    return ms(begun) if begun else 0


def _counted(recent: QuerySet[Sample], *, step_ms: int) -> set[int]:
    """The steps in which a broker was there: something was counted, or the lag of all
    summed up.

    That comes every minute, and now and then a little later: a single step that is missing
    was one, too.
    """
    there = {
        ms(at) for at in recent.filter(topic_ref=ALL_TOPICS).values_list("at", flat=True)
    }
    between = {at + step_ms for at in there if at + 2 * step_ms in there}
    after = range(1, 3 if step_ms == 60_000 else 2)
    return there | between | {max(there) + step_ms * n for n in after if there}


def read_pace(
    *,
    topic_id: int | None = None,
    group_id: int | None = None,
    sent_to: Collection[int] = (),
) -> Pace:
    """Messages per second over the last ten seconds that every process has written; see
    `read_points`.
    """
    return pace_of_series(
        read_points(
            for_s=60, topic_id=topic_id, group_id=group_id, sent_to=sent_to, step_s=SLOT_S
        )
    )


def pace_of_series(series: Sequence[Point]) -> Pace:
    """The same of a series in steps of SLOT_S."""
    last = series[-1]
    done = None if last.handled is None else last.handled / SLOT_S
    return Pace(last.sent / SLOT_S, last.pulled / SLOT_S, done)


def _fit(for_s: int) -> int:
    if for_s <= LIVE_S:
        return SLOT_S
    return 60 if for_s <= 6 * 3600 else 900 if for_s <= 7 * 86_400 else 86_400


def _whose(
    rows: QuerySet[Sample],
    topic_id: int | None,
    group_id: int | None,
    sent_to: Collection[int],
) -> QuerySet[Sample]:
    """The rows of a topic, of a group, of one in the other, or of all together."""
    if group_id is not None:
        mine = (
            Q(group_ref=group_id)
            if topic_id is None
            else Q(group_ref=group_id, topic_ref=topic_id)
        )
        return rows.filter(
            mine | Q(group_ref=0, topic_ref__in=sent_to) if sent_to else mine
        )
    return rows.filter(topic_ref=ALL_TOPICS if topic_id is None else topic_id)


def _summed(rows: QuerySet[Sample]) -> dict[int, Point]:
    """The points of some rows by time: what was sent and what was pulled, each summed up."""
    found: dict[int, Point] = {}
    for row in _by_time(rows.filter(group_ref=0), "messages", "bytes", "errors"):
        at, messages, size = ms(row["at"]), row["sum_messages"], row["sum_bytes"]
        found[at] = Point(at, sent=messages, sent_bytes=size, errors=row["sum_errors"])
    for row in _by_time(rows.exclude(group_ref=0), "messages", "bytes", "handled"):
        at = ms(row["at"])
        found[at] = replace(
            found.get(at, Point(at)), pulled=row["sum_messages"], pulled_bytes=row["sum_bytes"],
            handled=row["sum_handled"], lag=row["lags"], lag_ms=row["oldest"],
        )  # fmt: skip
    return found


def _slots(rows: QuerySet[Sample]) -> dict[int, Point]:
    """The points of each ten seconds of some minutes; all of a minute have its lag."""
    found: dict[int, Point] = {}
    for row in _by_time(rows.filter(group_ref=0), *BUCKETS):
        for at, column, _handled in _times(row["at"]):
            found[at] = Point(at, sent=row[f"sum_{column}"])
    for row in _by_time(rows.exclude(group_ref=0), *BUCKETS, *HANDLED):
        for at, column, done in _times(row["at"]):
            found[at] = replace(
                found.get(at, Point(at)), pulled=row[f"sum_{column}"], handled=row[f"sum_{done}"],
                lag=row["lags"], lag_ms=row["oldest"],
            )  # fmt: skip
    return found


def _by_time(rows: QuerySet[Sample], *columns: str) -> Any:
    """Sum columns of the rows of each time, as `sum_<column>`; also the lags, and the age
    of the oldest.
    """
    sums: dict[str, Any] = {f"sum_{column}": Sum(column) for column in columns}
    return (
        rows.order_by("at")
        .values("at")
        .annotate(**sums, lags=Sum("lag"), oldest=Max("lag_ms"))
    )


def _times(minute: datetime) -> list[tuple[int, str, str]]:
    """Each ten seconds of a minute, with the columns of what was sent or pulled, and of
    what was handled.
    """
    columns = enumerate(zip(BUCKETS, HANDLED, strict=True))
    return [
        (ms(minute) + number * SLOT_S * 1000, moved, done)
        for number, (moved, done) in columns
    ]
