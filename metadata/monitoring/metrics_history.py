"""Time series: messages through each topic and group, minute by minute, and the lag of
groups.

A group *pulled* the messages that were sent to its members, perhaps twice. It *handled*
the messages that its commits moved its positions past. These include failures that were
handed over and messages that a filter left out, but not those that a reset, a declared gap
or retention skipped.

Every process counts in memory. A loop of each worker adds the counts to the samples of
the current minute (`flush`), so a worker that is killed loses a few seconds of
statistics. A job records lag; other jobs sum samples up and delete old ones
(`rollups`). Times are the database's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import F, Max, Min, Q, QuerySet, Sum
from django.db.models.functions import Coalesce
from msgspec import Struct, structs

from metadata.db.clock import before, database_now, ms
from metadata.db.transactions import reachable, transactional
from metadata.models import ConsumerGroup, ConsumerGroupTopic, Sample, Topic
from metadata.monitoring.counters import SLOT_S, Count, Counters, Key
from metadata.rules.groups.states import SubscriptionState

# Stand for a topic id in samples of sums: all sends, and with ALL_GROUPS all pulls.
ALL_TOPICS = 0
ALL_GROUPS = -1
# A column for each SLOT_S of a minute: messages sent or pulled.
SENT_COLUMNS = tuple(f"bucket_10s_{number}" for number in range(1, 7))
# The same for messages that a group handled.
HANDLED_COLUMNS = tuple(f"handled_{number}" for number in range(1, 7))
WRITE_DELAY_S = 5  # every process writes its counts at least this often
LIVE_S = 900  # series up to this length have steps of SLOT_S
MAX_POINTS = 2_000  # per call
_NONE_HANDLED = dict.fromkeys(("handled", *HANDLED_COLUMNS), 0)
KEY_COLUMNS = ("at", "topic_ref", "group_ref")


class Point(Struct, frozen=True):
    """A step of a series, which begins at `at_ms`.

    `seconds` is its length; the last step may not be over yet. `lag` is None if not
    known, and `handled` where an earlier release counted. `is_known` is False if no
    process counted; then the zeros mean nothing.
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
    """Messages per second; `handled` is None where it was not counted."""

    sent: float
    pulled: float
    handled: float | None


class Backlog(Struct, frozen=True):
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
    """Count messages that a commit of a group moved its position past."""
    _counters.add(topic_id, group_id, Count(handled=messages))


def group_totals() -> dict[int, tuple[int, int]]:
    """Return (pulled, handled) of each group through this process since it started."""
    return dict(_counters.totals)


def evict_groups(keep: Collection[int]) -> None:
    # Over a copy: other threads add groups meanwhile.
    for group_id in [group for group in group_totals() if group not in keep]:
        _counters.totals.pop(group_id, None)


def flush() -> int:
    """Add the counts of this process to the samples. Return the number of topics and
    groups.

    Called by a loop of every worker. Raises MetadataUnavailable; then the counts are
    kept for the next call.
    """
    counts = _counters.take()
    if not counts:
        return 0
    try:
        _write_counts(counts)
    # Also for a signal to stop: counts that were taken must not be lost.
    except BaseException:
        _counters.put_back(counts)
        raise
    return len({(topic, group) for _slot, topic, group in counts})


@transactional
def _write_counts(counts: Mapping[Key, Count]) -> None:
    now_s = database_now().timestamp()
    _counters.learn(now_s)
    latest = int(now_s) // SLOT_S
    # By (minute, topic, group) and slot, including the sums over all topics.
    by_minute: dict[tuple[int, int, int], dict[int, Count]] = defaultdict(dict)
    for (counted_slot, topic, group), count in counts.items():
        # A count without a slot, or ahead of the database's clock, belongs to this write.
        slot = latest if counted_slot is None else min(counted_slot, latest)
        for key in ((topic, group), (ALL_TOPICS, ALL_GROUPS if group else 0)):
            slots = by_minute[slot // 6, *key]
            slots[slot] = slots.get(slot, Count()).plus(count)
    # All processes update the sums over all topics. These rows come last, so that the
    # processes wait for each other only there.
    samples = sorted(
        by_minute.items(), key=lambda count: (count[0][1] == ALL_TOPICS, count[0])
    )
    _create_missing_samples([key for key, _ in samples])
    for (minute, topic, group), slots in samples:
        handled = {
            HANDLED_COLUMNS[slot % 6]: count.handled
            for slot, count in slots.items()
            if count.handled
        }
        if handled:
            handled["handled"] = sum(handled.values())
        _samples_of(minute, topic, group).update(
            messages=F("messages") + sum(count.messages for count in slots.values()),
            bytes=F("bytes") + sum(count.bytes for count in slots.values()),
            errors=F("errors") + sum(count.errors for count in slots.values()),
            **{
                SENT_COLUMNS[slot % 6]: F(SENT_COLUMNS[slot % 6]) + count.messages
                for slot, count in slots.items()
            },
            # A process of an earlier release may have inserted the row with NULL in these
            # columns.
            **{column: Coalesce(F(column), 0) + added for column, added in handled.items()},
        )


def _minute_start(number: int) -> datetime:
    return datetime.fromtimestamp(60 * number, tz=UTC)


def _create_missing_samples(keys: Iterable[tuple[int, int, int]]) -> None:
    """Insert the samples of minutes that are missing. Another process may insert them,
    too.
    """
    needed = set(keys)
    times = {_minute_start(minute) for minute, _topic, _group in needed}
    topics = {topic for _minute, topic, _group in needed}
    rows = Sample.objects.filter(step_s=60, at__in=times, topic_ref__in=topics)
    existing = {
        (int(at.timestamp()) // 60, topic, group)
        for at, topic, group in rows.values_list(*KEY_COLUMNS)
    }
    Sample.objects.bulk_create(
        [
            Sample(
                at=_minute_start(minute),
                topic_ref=topic,
                group_ref=group,
                **(_NONE_HANDLED if group else {}),
            )
            for minute, topic, group in sorted(needed - existing)
        ],
        ignore_conflicts=True,
        batch_size=500,
    )


def start_of_step(at: datetime, *, step_s: int) -> datetime:
    seconds = int(at.timestamp())
    return datetime.fromtimestamp(seconds - seconds % step_s, tz=UTC)


@transactional
def record_lag(backlogs: Iterable[Backlog]) -> int:
    """Store the lag of subscriptions, in their rows and in samples. Return how many were
    stored.
    """
    now = database_now()
    minute = int(now.timestamp()) // 60
    # Subscriptions that were deleted meanwhile get no sample.
    recorded = [
        backlog
        for backlog in backlogs
        if ConsumerGroupTopic.objects.filter(pk=backlog.subscription_id).update(
            lag=backlog.lag, lag_ms=backlog.lag_ms, lag_at=now
        )
    ]
    _create_missing_samples(
        [(minute, backlog.topic_id, backlog.group_id) for backlog in recorded]
    )
    for backlog in recorded:
        _samples_of(minute, backlog.topic_id, backlog.group_id).update(
            lag=backlog.lag, lag_ms=backlog.lag_ms
        )
    return len(recorded)


@transactional
def sum_lag() -> None:
    """Store the lag of all groups together as a sample, after record_lag()."""
    minute = int(database_now().timestamp()) // 60
    rows = ConsumerGroupTopic.objects.filter(
        state=SubscriptionState.READY, group__deleted_at__isnull=True
    )
    sums = rows.aggregate(lag=Sum("lag"), lag_ms=Max("lag_ms"))
    _create_missing_samples([(minute, ALL_TOPICS, ALL_GROUPS)])
    _samples_of(minute, ALL_TOPICS, ALL_GROUPS).update(**sums)


def _samples_of(minute: int, topic: int, group: int) -> QuerySet[Sample]:
    return Sample.objects.filter(
        step_s=60, at=_minute_start(minute), topic_ref=topic, group_ref=group
    )


def read_points(
    *,
    for_s: int,
    topic_id: int | None = None,
    group_id: int | None = None,
    sent_to: Collection[int] = (),
    step_s: int | None = None,
) -> list[Point]:
    """Return the series of a topic, a group, a group in a topic, or all, for the last
    `for_s` s.

    Oldest first. In the series of a group, `sent` counts sends to the topics `sent_to`.
    A step without counts is zero if a broker was there to count and the topic or group
    existed, otherwise it is not known.

    Without `step_s` the finest step with at most a few hundred points is used. In steps
    of SLOT_S, the series ends where every process has written its counts; with longer
    steps, the last one is not over yet.
    """
    coarse_step = 60 if for_s <= 6 * 3600 else 900 if for_s <= 7 * 86_400 else 86_400
    step = step_s or (SLOT_S if for_s <= LIVE_S else coarse_step)
    row_s = max(step, 60)
    with reachable():
        now = database_now()
        recent = Sample.objects.filter(
            step_s=row_s, at__gte=start_of_step(before(now, seconds=for_s), step_s=row_s)
        )
        rows = _filter_samples(recent, topic_id, group_id, sent_to)
        points = _points_by_slot(rows) if step == SLOT_S else _points_by_minute(rows)
        created_at_ms = _created_at_ms(topic_id, group_id)
        counted_steps = _find_counted_steps(recent, step_ms=1000 * row_s)
    # Counts of the last seconds may still be in the memory of a process.
    last = start_of_step(
        before(now, seconds=WRITE_DELAY_S + SLOT_S) if step == SLOT_S else now, step_s=step
    )
    first = start_of_step(before(now, seconds=for_s), step_s=step)
    count = min(int((last - first).total_seconds()) // step + 1, MAX_POINTS)
    series = []
    for back in range(count - 1, -1, -1):
        at = ms(last - timedelta(seconds=step * back))
        point = points.get(at) or Point(
            at, is_known=at - at % (1000 * row_s) in counted_steps
        )
        if at + 1000 * step <= created_at_ms:
            point = Point(at, is_known=False)
        series.append(structs.replace(point, seconds=float(step)))
    # With longer steps the last is not over yet, so its rates need its true length.
    if step != SLOT_S:
        series[-1] = structs.replace(
            series[-1], seconds=max(1.0, (now - last).total_seconds())
        )
    return series


def first_sample_age_s(
    *,
    within_s: int,
    topic_id: int | None = None,
    group_id: int | None = None,
    sent_to: Collection[int] = (),
) -> float:
    """Return the age in s of the first sample of a series in the last `within_s` s; 0.0 if
    none.

    `within_s` is at most a day. Messages sent to the topics of a group before it was
    created do not count. See `read_points` for the other arguments.
    """
    with reachable():
        now = database_now()
        recent = Sample.objects.filter(step_s=60, at__gte=before(now, seconds=within_s))
        first = _filter_samples(recent, topic_id, group_id, sent_to).aggregate(
            at=Min("at")
        )["at"]
        created_at_ms = _created_at_ms(topic_id, group_id)
    if first is None:
        return 0.0
    return max(0.0, (ms(now) - max(ms(first), created_at_ms)) / 1000)


def _created_at_ms(topic_id: int | None, group_id: int | None) -> int:
    """Return when a group or topic was created; 0 if not known or for all."""
    created_at = None
    if group_id is not None:
        created_at = (
            ConsumerGroup.objects.filter(pk=group_id)
            .values_list("created_at", flat=True)
            .first()
        )
    elif topic_id is not None:
        created_at = (
            Topic.objects.filter(pk=topic_id).values_list("created_at", flat=True).first()
        )
    return ms(created_at) if created_at else 0


def _find_counted_steps(recent: QuerySet[Sample], *, step_ms: int) -> set[int]:
    """Return the steps in which a broker was there to count.

    Then the sums over all topics have a sample: of counts, or of the lag.
    """
    sampled = {
        ms(at) for at in recent.filter(topic_ref=ALL_TOPICS).values_list("at", flat=True)
    }
    # The lag is summed up every minute, now and then a little later. So a single missing
    # step counts as present.
    between = {at + step_ms for at in sampled if at + 2 * step_ms in sampled}
    after = range(1, 3 if step_ms == 60_000 else 2)
    return sampled | between | {max(sampled) + step_ms * n for n in after if sampled}


def read_pace(
    *,
    topic_id: int | None = None,
    group_id: int | None = None,
    sent_to: Collection[int] = (),
) -> Pace:
    """Return the messages per second over the last ten seconds that every process has
    written.

    See `read_points` for the arguments.
    """
    return pace_of_series(
        read_points(
            for_s=60, topic_id=topic_id, group_id=group_id, sent_to=sent_to, step_s=SLOT_S
        )
    )


def pace_of_series(series: Sequence[Point]) -> Pace:
    """Return the messages per second in the last step of a series in steps of SLOT_S."""
    last = series[-1]
    handled = None if last.handled is None else last.handled / SLOT_S
    return Pace(last.sent / SLOT_S, last.pulled / SLOT_S, handled)


def _filter_samples(
    rows: QuerySet[Sample],
    topic_id: int | None,
    group_id: int | None,
    sent_to: Collection[int],
) -> QuerySet[Sample]:
    if group_id is not None:
        own_samples = (
            Q(group_ref=group_id)
            if topic_id is None
            else Q(group_ref=group_id, topic_ref=topic_id)
        )
        return rows.filter(
            own_samples | Q(group_ref=0, topic_ref__in=sent_to) if sent_to else own_samples
        )
    return rows.filter(topic_ref=ALL_TOPICS if topic_id is None else topic_id)


def _points_by_minute(rows: QuerySet[Sample]) -> dict[int, Point]:
    points: dict[int, Point] = {}
    for row in _sum_by_time(rows.filter(group_ref=0), "messages", "bytes", "errors"):
        at, messages, size = ms(row["at"]), row["sum_messages"], row["sum_bytes"]
        points[at] = Point(at, sent=messages, sent_bytes=size, errors=row["sum_errors"])
    for row in _sum_by_time(rows.exclude(group_ref=0), "messages", "bytes", "handled"):
        at = ms(row["at"])
        points[at] = structs.replace(
            points.get(at, Point(at)), pulled=row["sum_messages"], pulled_bytes=row["sum_bytes"],
            handled=row["sum_handled"], lag=row["lags"], lag_ms=row["oldest"],
        )  # fmt: skip
    return points


def _points_by_slot(rows: QuerySet[Sample]) -> dict[int, Point]:
    """Return a point for each slot of the samples; all slots of a minute have its lag."""
    points: dict[int, Point] = {}
    for row in _sum_by_time(rows.filter(group_ref=0), *SENT_COLUMNS):
        for at, column, _ in _slots_of_minute(row["at"]):
            points[at] = Point(at, sent=row[f"sum_{column}"])
    for row in _sum_by_time(rows.exclude(group_ref=0), *SENT_COLUMNS, *HANDLED_COLUMNS):
        for at, column, handled_column in _slots_of_minute(row["at"]):
            points[at] = structs.replace(
                points.get(at, Point(at)), pulled=row[f"sum_{column}"],
                handled=row[f"sum_{handled_column}"],
                lag=row["lags"], lag_ms=row["oldest"],
            )  # fmt: skip
    return points


def _sum_by_time(rows: QuerySet[Sample], *columns: str) -> Any:
    """Sum columns of the samples of each time, as `sum_<column>`.

    Adds `lags`, the sum of lags, and `oldest`, the highest age.
    """
    sums: dict[str, Any] = {f"sum_{column}": Sum(column) for column in columns}
    return (
        rows.order_by("at")
        .values("at")
        .annotate(**sums, lags=Sum("lag"), oldest=Max("lag_ms"))
    )


def _slots_of_minute(minute: datetime) -> list[tuple[int, str, str]]:
    """Return the start in ms of each slot of a minute, with its column of sends and of
    handled messages.
    """
    columns = enumerate(zip(SENT_COLUMNS, HANDLED_COLUMNS, strict=True))
    return [
        (ms(minute) + number * SLOT_S * 1000, sent_column, handled_column)
        for number, (sent_column, handled_column) in columns
    ]
