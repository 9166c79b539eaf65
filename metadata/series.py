"""Series: how much went through each topic and group, minute by minute, and how far groups were behind.

Every process counts in memory; a loop of each worker adds what it counted to the rows of the current minute
(`flush`), so a worker that is killed loses a few seconds of statistics and nothing else. A job records lag,
rolls minutes up into quarters of an hour and days, and trims. Times are the database's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import F, Max, Min, QuerySet, Sum

from metadata.clock import before, database_now, ms
from metadata.models import ConsumerGroupTopic, Sample
from metadata.transactions import reachable, transactional

KEPT_S = {60: 2 * 86_400, 900: 30 * 86_400, 86_400: 730 * 86_400}  # step → how long its rows are kept
FINER = {900: 60, 86_400: 900}  # step → the step it is made of
MOST_STEPS = 200  # rolled up in one pass
MOST_TRIMMED = 20_000  # rows in one pass
MOST_POINTS = 2_000  # of one answer


@dataclass(frozen=True, slots=True)
class Count:
    """What was counted: messages, bytes of their bodies, and errors."""

    messages: int = 0
    bytes: int = 0
    errors: int = 0

    def plus(self, other: Count) -> Count:
        """Both together."""
        return Count(self.messages + other.messages, self.bytes + other.bytes, self.errors + other.errors)


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a series: from `at_ms` on; what was sent and what was pulled; lag None where not known.

    `seconds` that it tells of: the last step is not over yet.
    """

    at_ms: int
    seconds: float = 60.0
    sent: int = 0
    sent_bytes: int = 0
    errors: int = 0
    pulled: int = 0
    pulled_bytes: int = 0
    lag: int | None = None
    lag_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Backlog:
    """How far a subscription is behind: messages, and ms since the oldest unread one was stored."""

    subscription_id: int
    group_id: int
    topic_id: int
    lag: int
    lag_ms: int


class _Tally:
    """What this process counted since the last flush, by (topic, group); group 0 is what was sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, int], Count] = {}

    def add(self, topic_id: int, group_id: int, count: Count) -> None:
        with self._lock:
            known = self._counts.get((topic_id, group_id))
            self._counts[topic_id, group_id] = known.plus(count) if known else count

    def take(self) -> dict[tuple[int, int], Count]:
        with self._lock:
            taken, self._counts = self._counts, {}
        return taken


_tally = _Tally()


def sent(*, topic_id: int, messages: int, bytes: int, errors: int = 0) -> None:
    """Counts what was sent to a topic."""
    _tally.add(topic_id, 0, Count(messages, bytes, errors))


def pulled(*, topic_id: int, group_id: int, messages: int, bytes: int) -> None:
    """Counts what a group pulled of a topic."""
    _tally.add(topic_id, group_id, Count(messages, bytes))


def flush() -> int:
    """Adds what this process counted to the rows of the current minute; how many. A loop of every worker.

    Raises MetadataUnavailable; what was counted is kept for the next pass then.
    """
    counts = _tally.take()
    if not counts:
        return 0
    try:
        _write(counts)
    except BaseException:
        for (topic, group), count in counts.items():
            _tally.add(topic, group, count)
        raise
    return len(counts)


@transactional
def _write(counts: Mapping[tuple[int, int], Count]) -> None:
    at = start_of(database_now(), step_s=60)
    for (topic, group), count in sorted(counts.items(), key=lambda one: one[0]):
        row = _row(at, topic, group)
        row.update(
            messages=F("messages") + count.messages,
            bytes=F("bytes") + count.bytes,
            errors=F("errors") + count.errors,
        )


def _row(at: datetime, topic: int, group: int) -> QuerySet[Sample]:
    """The row of a minute, made if it is not there."""
    key: dict[str, Any] = {"step_s": 60, "at": at, "topic_ref": topic, "group_ref": group}
    rows = Sample.objects.filter(**key)
    if not rows.exists():
        Sample.objects.get_or_create(**key)
    return rows


def start_of(at: datetime, *, step_s: int) -> datetime:
    """When the step that contains `at` began."""
    seconds = int(at.timestamp())
    return datetime.fromtimestamp(seconds - seconds % step_s, tz=UTC)


@transactional
def record_lag(found: Iterable[Backlog]) -> int:
    """Records how far subscriptions are behind, for lists and in the series; how many."""
    now = database_now()
    at = start_of(now, step_s=60)
    count = 0
    for one in found:
        rows = ConsumerGroupTopic.objects.filter(pk=one.subscription_id)
        if rows.update(lag=one.lag, lag_ms=one.lag_ms, lag_at=now):
            _row(at, one.topic_id, one.group_id).update(lag=one.lag, lag_ms=one.lag_ms)
            count += 1
    return count


def points(
    *, for_s: int, topic_id: int | None = None, group_id: int | None = None, step_s: int | None = None
) -> list[Point]:
    """The series of a topic, a group, one in the other, or all, over the last `for_s` seconds, oldest first.

    A step in which nothing was counted has no point in the store and is a zero here, so that lines are true.
    Without `step_s` the finest step that gives at most a few hundred points.
    """
    step = step_s or _fit(for_s)
    with reachable():
        now = database_now()
        first = start_of(before(now, seconds=for_s), step_s=step)
        rows = Sample.objects.filter(step_s=step, at__gte=first)
        if topic_id is not None:
            rows = rows.filter(topic_ref=topic_id)
        if group_id is not None:
            rows = rows.filter(group_ref=group_id)
        found = _summed(rows)
    last = start_of(now, step_s=step)
    count = min(int((last - first).total_seconds()) // step + 1, MOST_POINTS)
    times = [ms(last - timedelta(seconds=step * back)) for back in range(count - 1, -1, -1)]
    made = [replace(found.get(at, Point(at)), seconds=step) for at in times]
    made[-1] = replace(made[-1], seconds=max(1.0, (now - last).total_seconds()))
    return made


def _fit(for_s: int) -> int:
    return 60 if for_s <= 6 * 3600 else 900 if for_s <= 7 * 86_400 else 86_400


def _summed(rows: QuerySet[Sample]) -> dict[int, Point]:
    """The points of some rows by time: what was sent and what was pulled, each summed up."""
    found: dict[int, Point] = {}
    sums: dict[str, Any] = {"n": Sum("messages"), "b": Sum("bytes"), "e": Sum("errors")}
    row: Any
    for row in rows.filter(group_ref=0).order_by("at").values("at").annotate(**sums):
        found[ms(row["at"])] = Point(ms(row["at"]), sent=row["n"], sent_bytes=row["b"], errors=row["e"])
    sums = {"n": Sum("messages"), "b": Sum("bytes"), "lags": Sum("lag"), "oldest": Max("lag_ms")}
    for row in rows.exclude(group_ref=0).order_by("at").values("at").annotate(**sums):
        at = ms(row["at"])
        point = found.get(at, Point(at))
        found[at] = replace(
            point, pulled=row["n"], pulled_bytes=row["b"], lag=row["lags"], lag_ms=row["oldest"]
        )
    return found


def recent(*, topic_ids: Iterable[int], group_id: int = 0, minutes: int = 30) -> dict[int, list[int]]:
    """Topic → messages of each of the last minutes, oldest first, for the small lines of a list."""
    with reachable():
        last = start_of(database_now(), step_s=60)
        first = last - timedelta(minutes=minutes - 1)
        rows = Sample.objects.filter(
            step_s=60, at__gte=first, topic_ref__in=list(topic_ids), group_ref=group_id
        )
        found: dict[int, list[int]] = {}
        for topic, at, messages in rows.values_list("topic_ref", "at", "messages"):
            line = found.setdefault(topic, [0] * minutes)
            line[min(int((at - first).total_seconds()) // 60, minutes - 1)] += messages
    return found


def pulled_by(*, group_ids: Iterable[int], minutes: int = 30) -> dict[int, list[int]]:
    """Group → messages it pulled in each of the last minutes, oldest first."""
    with reachable():
        last = start_of(database_now(), step_s=60)
        first = last - timedelta(minutes=minutes - 1)
        rows = Sample.objects.filter(step_s=60, at__gte=first, group_ref__in=list(group_ids))
        found: dict[int, list[int]] = {}
        for group, at, messages in rows.values_list("group_ref", "at", "messages"):
            line = found.setdefault(group, [0] * minutes)
            line[min(int((at - first).total_seconds()) // 60, minutes - 1)] += messages
    return found


def roll_up() -> int:
    """Sums finer steps up into coarser ones; how many steps. One bounded pass; harmless when repeated."""
    return sum(_roll_up(step_s) for step_s in (900, 86_400))


def _roll_up(step_s: int) -> int:
    finer = Sample.objects.filter(step_s=FINER[step_s])
    with reachable():
        begun = Sample.objects.filter(step_s=step_s).aggregate(at=Max("at"))["at"]
        begun = begun or finer.aggregate(at=Min("at"))["at"]
        now = database_now()
    if begun is None:
        return 0
    at, done = start_of(begun, step_s=step_s), 0
    while at <= now and done < MOST_STEPS:
        _sum_up(at, step_s)
        at, done = at + timedelta(seconds=step_s), done + 1
    return done


@transactional
def _sum_up(at: datetime, step_s: int) -> None:
    """Makes the rows of one coarse step anew, so that a repeat changes nothing."""
    within = {"at__gte": at, "at__lt": at + timedelta(seconds=step_s)}
    rows = Sample.objects.filter(step_s=FINER[step_s], **within).order_by("topic_ref", "group_ref")
    sums = rows.values("topic_ref", "group_ref").annotate(
        n=Sum("messages"), b=Sum("bytes"), e=Sum("errors"), most=Max("lag"), oldest=Max("lag_ms")
    )
    made = [
        Sample(
            step_s=step_s, at=at, topic_ref=one["topic_ref"], group_ref=one["group_ref"], messages=one["n"],
            bytes=one["b"], errors=one["e"], lag=one["most"], lag_ms=one["oldest"],
        )
        for one in sums
    ]  # fmt: skip
    Sample.objects.filter(step_s=step_s, at=at).delete()
    Sample.objects.bulk_create(made, batch_size=500)


def trim(*, limit: int = MOST_TRIMMED) -> int:
    """Deletes rows of each step that are older than it is kept; how many. One bounded pass."""
    with reachable():
        now = database_now()
        count = 0
        for step_s, kept_s in KEPT_S.items():
            old = Sample.objects.filter(step_s=step_s, at__lt=before(now, seconds=kept_s)).order_by("at")
            ids = list(old.values_list("pk", flat=True)[: limit - count])
            for first in range(0, len(ids), 500):
                count += Sample.objects.filter(pk__in=ids[first : first + 500]).delete()[0]
    return count
