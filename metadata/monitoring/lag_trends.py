"""The progress of groups: what they are sent, pull and handle a second, and whether they
catch up.

Of many groups always as many queries. The lag of now is what a job saw
(`metrics_history.record_lag`), or what a caller has just read from the nodes; that of
before is in the series. A reset moves the lag without anything being handled, so nothing
from before the last one counts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Count, F, Max

from metadata.db.clock import before, database_now
from metadata.db.transactions import reachable
from metadata.models import (
    ConsumerGroup,
    ConsumerGroupConsumer,
    ConsumerGroupTopic,
    DeadLetterCount,
    OffsetMove,
    RebalanceMove,
    Sample,
)
from metadata.monitoring.metrics_history import Pace, start_of_step
from metadata.rules.groups.lag_trend import WINDOW_S, LagFigures, LagTrend, find_trend

# a lag that was not recorded for longer is not that of now; the job comes every minute
STALE_S = 180.0
MINUTE = timedelta(seconds=60)
# topic → messages that were sent to it in each minute
_Sent = Mapping[int, Mapping[datetime, int]]


class Lag(NamedTuple):
    """Messages that are unread in a topic, and the age of the oldest of them; None where
    not known.
    """

    messages: int | None
    oldest_ms: int | None


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The verdict on a group, and its figures; `pace` is that of the last minute or two."""

    said: LagTrend
    pace: Pace
    lag: int | None
    lag_before: int | None
    between_s: float


@dataclass(slots=True)
class _Subscription:
    """One as it counts here: `at` is when its lag was seen."""

    topic_id: int
    topic: str
    stopped: bool
    delay_ms: int
    lag: Lag
    at: datetime | None


class RecentEvents(NamedTuple):
    """Events of a group: its rebalances and who last moved its offsets back, in the last
    WINDOW_S, and its dead letters of the last hour, as a job counted them."""

    rebalances: int
    reset_by: str
    dead_last_hour: int


class _Minute(NamedTuple):
    """Messages of a topic that a group pulled and handled in a minute, and its lag then."""

    pulled: int
    handled: int | None
    lag: int | None


@dataclass(slots=True)
class _Group:
    stopped: bool
    members: int = 0
    moved_at: datetime | None = None
    subscriptions: list[_Subscription] = field(default_factory=list)
    minutes: dict[datetime, dict[int, _Minute]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    @property
    def running(self) -> list[_Subscription]:
        return (
            [] if self.stopped else [one for one in self.subscriptions if not one.stopped]
        )


def read_group_progress(*, group: str, lags: Mapping[str, Lag]) -> GroupProgress | None:
    """Return how a group gets on whose lag was just read from the nodes, by topic; None if
    it is gone.
    """
    with reachable():
        found = ConsumerGroup.objects.filter(name=group, deleted_at__isnull=True).first()
    return read_progress_of_groups([found.pk], lags=lags).get(found.pk) if found else None


def read_recent_events(*, group_id: int) -> RecentEvents:
    """Return what happened to a group in the last minutes, in four queries."""
    with reachable():
        since = before(database_now(), seconds=WINDOW_S)
        resets = OffsetMove.objects.filter(group=group_id, at__gte=since, done=True)
        back = resets.filter(to_offset__lt=F("from_offset")).order_by("-pk")
        reset_by = back.values_list("actor_name", flat=True).first()
        dead = (
            DeadLetterCount.objects.filter(group_ref=group_id)
            .values_list("last_hour", flat=True)
            .first()
        )
        # A subscription or an expansion is a rebalance, too, but takes no queue from a
        # member.
        moves = RebalanceMove.objects.filter(
            rebalance__group=group_id, rebalance__at__gte=since
        )
        rebalances = moves.exclude(from_member="").values("rebalance").distinct().count()
    return RecentEvents(rebalances, reset_by or "", dead or 0)


def read_progress_of_groups(
    group_ids: Collection[int], *, lags: Mapping[str, Lag] | None = None
) -> dict[int, GroupProgress]:
    """Group → how it gets on, in seven queries; `lags`: of now, by topic, else what the job
    saw last.
    """
    with reachable():
        now = database_now()
        since = start_of_step(before(now, seconds=WINDOW_S + 60), step_s=60)
        groups = _groups(group_ids, since)
        topics = {one.topic_id for group in groups.values() for one in group.subscriptions}
        sent = _sent(topics, since)
    for group in groups.values():
        group.subscriptions = [_current(one, now, lags) for one in group.subscriptions]
    return {group_id: _progress(group, sent, now) for group_id, group in groups.items()}


def _groups(group_ids: Collection[int], since: datetime) -> dict[int, _Group]:
    ids = list(group_ids)
    rows = ConsumerGroup.objects.filter(pk__in=ids)
    groups = {pk: _Group(stopped) for pk, stopped in rows.values_list("pk", "stopped")}
    counts = (
        ConsumerGroupConsumer.objects.filter(group__in=ids).order_by().values_list("group")
    )
    for group_id, members in counts.annotate(n=Count("pk")):
        groups[group_id].members = members
    moves = (
        OffsetMove.objects.filter(group__in=ids, at__gte=since)
        .order_by()
        .values_list("group")
    )
    for group_id, moved_at in moves.annotate(last=Max("at")):
        groups[group_id].moved_at = moved_at
    subscriptions = ConsumerGroupTopic.objects.filter(group__in=ids, state="ready")
    columns = (
        "group_id",
        "topic_id",
        "topic__name",
        "stopped",
        "delay_s",
        "lag",
        "lag_ms",
        "lag_at",
    )
    for (
        group_id,
        topic_id,
        topic,
        stopped,
        delay_s,
        lag,
        lag_ms,
        at,
    ) in subscriptions.values_list(*columns):
        one = _Subscription(topic_id, topic, stopped, 1000 * delay_s, Lag(lag, lag_ms), at)
        groups[group_id].subscriptions.append(one)
    samples = Sample.objects.filter(step_s=60, at__gte=since, group_ref__in=ids)
    for group_id, topic, at, pulled, handled, lag in samples.values_list(
        "group_ref", "topic_ref", "at", "messages", "handled", "lag"
    ):
        groups[group_id].minutes[at][topic] = _Minute(pulled, handled, lag)
    return groups


def _sent(topics: Collection[int], since: datetime) -> dict[int, dict[datetime, int]]:
    found: dict[int, dict[datetime, int]] = defaultdict(dict)
    rows = Sample.objects.filter(
        step_s=60, at__gte=since, group_ref=0, topic_ref__in=list(topics)
    )
    for topic, at, messages in rows.values_list("topic_ref", "at", "messages"):
        found[topic][at] = messages
    return found


def _current(
    one: _Subscription, now: datetime, lags: Mapping[str, Lag] | None
) -> _Subscription:
    """A subscription with its lag of now, or without one. A message that must still ripen
    is not late.
    """
    if lags is not None:
        one = replace(one, lag=lags.get(one.topic, Lag(None, None)), at=now)
    elif one.at is None or one.at < before(now, seconds=STALE_S):
        one = replace(one, lag=Lag(None, None))
    oldest_ms = one.lag.oldest_ms
    ripe_ms = None if oldest_ms is None else max(0, oldest_ms - one.delay_ms)
    return replace(one, lag=Lag(one.lag.messages, ripe_ms))


def _progress(group: _Group, sent: _Sent, now: datetime) -> GroupProgress:
    running = group.running
    lag = _sum([one.lag.messages for one in running])
    seen_at = min((one.at for one in running if one.at is not None), default=now)
    then, lag_before = _earlier(group, seen_at)
    between_s = (seen_at - then).total_seconds() if then else 0.0
    topics = {one.topic_id for one in running}
    since = then or start_of_step(now, step_s=60) - MINUTE
    seen = LagFigures(
        members=group.members,
        paused=group.stopped or (bool(group.subscriptions) and not running),
        lag=lag,
        oldest_ms=max((one.lag.oldest_ms or 0 for one in running), default=0),
        lag_before=lag_before,
        between_s=between_s,
        sent=_sent_since(sent, topics, since),
        handled=_handled_since(group, topics, since),
    )
    return GroupProgress(
        find_trend(seen), _pace(group, sent, now), lag, lag_before, between_s
    )


def _sum(values: Collection[int | None]) -> int | None:
    """None if one of them is not known."""
    known = [one for one in values if one is not None]
    return sum(known) if len(known) == len(values) else None


def _earlier(group: _Group, seen_at: datetime) -> tuple[datetime | None, int | None]:
    """The earliest moment at which the lag in all running topics is known, and that lag.

    A row tells its minute; the job comes at about the same second of each.
    """
    topics = [one.topic_id for one in group.running]
    phase = seen_at - start_of_step(seen_at, step_s=60)
    for minute in sorted(group.minutes) if topics else ():
        at, rows = minute + phase, group.minutes[minute]
        lag = _sum([rows[topic].lag if topic in rows else None for topic in topics])
        if (
            lag is not None
            and at <= seen_at
            and (group.moved_at is None or minute > group.moved_at)
        ):
            return at, lag
    return None, None


def _sent_since(sent: _Sent, topics: Collection[int], since: datetime) -> int:
    """Messages that were sent to some topics; the first minute counts for its part."""
    return _since(
        [(at, count) for topic in topics for at, count in sent.get(topic, {}).items()],
        since,
    )


def _handled_since(group: _Group, topics: Collection[int], since: datetime) -> int | None:
    """Messages of some topics that a group handled; None if a part of it was not counted."""
    rows = [
        (at, one.handled)
        for at, row in group.minutes.items()
        for topic, one in row.items()
        if topic in topics and at + MINUTE > since
    ]
    known = [(at, count) for at, count in rows if count is not None]
    return _since(known, since) if len(known) == len(rows) else None


def _since(minutes: Collection[tuple[datetime, int]], since: datetime) -> int:
    parts = [
        count * min(1.0, max(0.0, (at + MINUTE - since).total_seconds() / 60))
        for at, count in minutes
    ]
    return math.ceil(sum(parts))


def _pace(group: _Group, sent: _Sent, now: datetime) -> Pace:
    """Messages a second, in all topics, since the last minute but one began."""
    since = start_of_step(now, step_s=60) - MINUTE
    seconds = (now - since).total_seconds()
    topics = {one.topic_id for one in group.subscriptions}
    sent_now, handled = (
        _sent_since(sent, topics, since),
        _handled_since(group, topics, since),
    )
    rows = group.minutes.items()
    pulled = _since([(at, one.pulled) for at, row in rows for one in row.values()], since)
    return Pace(
        sent_now / seconds, pulled / seconds, None if handled is None else handled / seconds
    )
