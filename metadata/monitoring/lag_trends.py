"""Lag trends: what groups are sent, pull and handle each second, and whether they catch
up.

However many groups are asked for, the number of queries is the same. The current lag is
the one that a job recorded (`metrics_history.record_lag`), or one that the caller has
just read from the nodes. The earlier lag comes from the samples. An offset reset
changes the lag without any message being handled, so only samples after the last reset
count.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Count, F, Max
from msgspec import Struct

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
from metadata.rules.groups.states import SubscriptionState

# A recorded lag that is older is not current; the job runs every minute.
STALE_S = 180.0
MINUTE = timedelta(seconds=60)
# topic id → minute → messages that were sent to the topic in it
_SentByMinute = Mapping[int, Mapping[datetime, int]]


class Lag(NamedTuple):
    """Unread messages of a topic, and the age of the oldest; None if not known."""

    messages: int | None
    oldest_ms: int | None


class GroupProgress(Struct, frozen=True):
    """Trend of a group with its figures.

    `lag_before` is the lag `between_s` seconds ago. `pace` covers the last one to two
    minutes.
    """

    trend: LagTrend
    pace: Pace
    lag: int | None
    lag_before: int | None
    between_s: float


@dataclass(slots=True)
class _SubscriptionLag:
    """A subscription with its lag, which was read `at` that time."""

    topic_id: int
    topic: str
    stopped: bool
    delay_ms: int
    lag: Lag
    at: datetime | None


class RecentEvents(NamedTuple):
    """Recent events of a group.

    `rebalances` that took a queue from a member, and who last moved offsets back
    (`reset_by`), both in the last WINDOW_S. `dead_last_hour`: its dead letters of the
    last hour, as a job counted them.
    """

    rebalances: int
    reset_by: str
    dead_last_hour: int


class _Minute(NamedTuple):
    """Messages of a topic that a group pulled and handled in a minute, and its lag then."""

    pulled: int
    handled: int | None
    lag: int | None


@dataclass(slots=True)
class _GroupData:
    """All that the queries returned about a group; `moved_at` is its last offset reset."""

    stopped: bool
    members: int = 0
    moved_at: datetime | None = None
    subscriptions: list[_SubscriptionLag] = field(default_factory=list)
    minutes: dict[datetime, dict[int, _Minute]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    @property
    def running(self) -> list[_SubscriptionLag]:
        if self.stopped:
            return []
        return [lag for lag in self.subscriptions if not lag.stopped]


def read_group_progress(*, group: str, lags: Mapping[str, Lag]) -> GroupProgress | None:
    """Return the progress of a group whose lag per topic was just read from the nodes.

    Return None if the group does not exist.
    """
    with reachable():
        group_row = ConsumerGroup.objects.filter(
            name=group, deleted_at__isnull=True
        ).first()
    return (
        read_progress_of_groups([group_row.pk], lags=lags).get(group_row.pk)
        if group_row
        else None
    )


def read_recent_events(*, group_id: int) -> RecentEvents:
    with reachable():
        since = before(database_now(), seconds=WINDOW_S)
        resets = OffsetMove.objects.filter(group=group_id, at__gte=since, done=True)
        moves_back = resets.filter(to_offset__lt=F("from_offset")).order_by("-pk")
        reset_by = moves_back.values_list("actor_name", flat=True).first()
        dead_last_hour = (
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
    return RecentEvents(rebalances, reset_by or "", dead_last_hour or 0)


def read_progress_of_groups(
    group_ids: Collection[int], *, lags: Mapping[str, Lag] | None = None
) -> dict[int, GroupProgress]:
    """Return the progress of groups by group id, in seven queries.

    `lags` are current lags by topic name; without them the recorded lags are used.
    """
    with reachable():
        now = database_now()
        since = start_of_step(before(now, seconds=WINDOW_S + 60), step_s=60)
        groups = _read_groups(group_ids, since)
        topics = {
            subscription.topic_id
            for group in groups.values()
            for subscription in group.subscriptions
        }
        sent: dict[int, dict[datetime, int]] = defaultdict(dict)
        sent_samples = Sample.objects.filter(
            step_s=60, at__gte=since, group_ref=0, topic_ref__in=list(topics)
        )
        for topic, at, messages in sent_samples.values_list("topic_ref", "at", "messages"):
            sent[topic][at] = messages
    for group in groups.values():
        for subscription in group.subscriptions:
            if lags is not None:
                subscription.lag = lags.get(subscription.topic, Lag(None, None))
                subscription.at = now
            elif subscription.at is None or subscription.at < before(now, seconds=STALE_S):
                subscription.lag = Lag(None, None)
            # A delayed message is not late, so the delivery delay does not count as age.
            unread, oldest_ms = subscription.lag
            if oldest_ms is not None:
                subscription.lag = Lag(unread, max(0, oldest_ms - subscription.delay_ms))
    return {group_id: _judge_group(group, sent, now) for group_id, group in groups.items()}


def _read_groups(group_ids: Collection[int], since: datetime) -> dict[int, _GroupData]:
    ids = list(group_ids)
    rows = ConsumerGroup.objects.filter(pk__in=ids)
    groups = {pk: _GroupData(stopped) for pk, stopped in rows.values_list("pk", "stopped")}
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
    subscriptions = ConsumerGroupTopic.objects.filter(
        group__in=ids, state=SubscriptionState.READY
    )
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
        groups[group_id].subscriptions.append(
            _SubscriptionLag(topic_id, topic, stopped, 1000 * delay_s, Lag(lag, lag_ms), at)
        )
    samples = Sample.objects.filter(step_s=60, at__gte=since, group_ref__in=ids)
    for group_id, topic, at, pulled, handled, lag in samples.values_list(
        "group_ref", "topic_ref", "at", "messages", "handled", "lag"
    ):
        groups[group_id].minutes[at][topic] = _Minute(pulled, handled, lag)
    return groups


def _judge_group(group: _GroupData, sent: _SentByMinute, now: datetime) -> GroupProgress:
    """Compare the current lag of a group with the earliest lag in the window."""
    running = group.running
    lag = _sum_or_none([subscription.lag.messages for subscription in running])
    lag_at = min(
        (subscription.at for subscription in running if subscription.at is not None),
        default=now,
    )
    # Since the minute before the last began; topics that are paused count, too.
    pace_since = start_of_step(now, step_s=60) - MINUTE
    seconds = (now - pace_since).total_seconds()
    all_topics = {subscription.topic_id for subscription in group.subscriptions}
    handled = _count_handled_since(group, all_topics, pace_since)
    pulled = _count_since(
        [
            (at, minute.pulled)
            for at, row in group.minutes.items()
            for minute in row.values()
        ],
        pace_since,
    )
    pace = Pace(
        _count_sent_since(sent, all_topics, pace_since) / seconds,
        pulled / seconds,
        None if handled is None else handled / seconds,
    )
    earlier_at, lag_before = _find_earlier_lag(group, lag_at)
    between_s = (lag_at - earlier_at).total_seconds() if earlier_at else 0.0
    topics = {subscription.topic_id for subscription in running}
    since = earlier_at or pace_since
    figures = LagFigures(
        members=group.members,
        paused=group.stopped or (bool(group.subscriptions) and not running),
        lag=lag,
        oldest_ms=max(
            (subscription.lag.oldest_ms or 0 for subscription in running), default=0
        ),
        lag_before=lag_before,
        between_s=between_s,
        sent=_count_sent_since(sent, topics, since),
        handled=_count_handled_since(group, topics, since),
    )
    return GroupProgress(find_trend(figures), pace, lag, lag_before, between_s)


def _sum_or_none(values: Collection[int | None]) -> int | None:
    return None if None in values else sum(value or 0 for value in values)


def _find_earlier_lag(
    group: _GroupData, lag_at: datetime
) -> tuple[datetime | None, int | None]:
    """Return the earliest time in the window at which the lag of all running topics is
    known, and the lag.
    """
    topics = [subscription.topic_id for subscription in group.running]
    # A sample has only its minute. The job runs at about the same second of each minute.
    second_of_minute = lag_at - start_of_step(lag_at, step_s=60)
    for minute in sorted(group.minutes) if topics else ():
        at, rows = minute + second_of_minute, group.minutes[minute]
        lag = _sum_or_none([rows[topic].lag if topic in rows else None for topic in topics])
        if (
            lag is not None
            and at <= lag_at
            and (group.moved_at is None or minute > group.moved_at)
        ):
            return at, lag
    return None, None


def _count_sent_since(sent: _SentByMinute, topics: Collection[int], since: datetime) -> int:
    """Return the number of messages sent to the topics; the first minute counts in part."""
    return _count_since(
        [(at, count) for topic in topics for at, count in sent.get(topic, {}).items()],
        since,
    )


def _count_handled_since(
    group: _GroupData, topics: Collection[int], since: datetime
) -> int | None:
    """Return the number of messages that a group handled, None if a part was not counted."""
    rows = [
        (at, minute.handled)
        for at, row in group.minutes.items()
        for topic, minute in row.items()
        if topic in topics and at + MINUTE > since
    ]
    counted = [(at, count) for at, count in rows if count is not None]
    return _count_since(counted, since) if len(counted) == len(rows) else None


def _count_since(minutes: Collection[tuple[datetime, int]], since: datetime) -> int:
    """Sum the counts of minutes. A minute that began before `since` counts in part."""
    shares = [
        count * min(1.0, max(0.0, (at + MINUTE - since).total_seconds() / 60))
        for at, count in minutes
    ]
    return math.ceil(sum(shares))
