"""Figures of the portal's first page: counts, groups with lag, alarms and failures. They are
read with a fixed number of queries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

from django.db.models import F, Q, QuerySet, Sum
from msgspec import Struct

from metadata.actors import Actor
from metadata.config import config
from metadata.db.clock import before, database_now
from metadata.db.transactions import reachable
from metadata.listing.operation_lists import AlarmRow, alarms
from metadata.listing.pages import ListQuery
from metadata.listing.topic_lists import GroupRow, check_look, groups, with_minutes
from metadata.models import (
    Alarm,
    ConsumerGroup,
    ConsumerGroupConsumer,
    ConsumerGroupTopic,
    JobRun,
    QueueOffset,
    Topic,
)
from metadata.monitoring import dead_letter_counts
from metadata.monitoring.dead_letter_counts import DeadLetters
from metadata.rules.alarm_rules import AlarmKind, parse_subject
from metadata.rules.groups.lag_trend import TrendState
from metadata.rules.groups.states import GroupMode, SubscriptionState
from metadata.rules.jobs import JobState
from metadata.rules.topics.states import TopicKind, TopicState

MOST = 8  # groups or alarms that are listed
# Groups with the largest lag, among which those with the fastest growing lag are found.
CANDIDATES = 50
DAY_S = 86_400
# Kinds of alarms about the lag of a group.
LAG_ALARMS = (AlarmKind.LAG, AlarmKind.NO_CONSUMER)


class Overview(Struct, frozen=True):
    """Counts, and the first MOST groups and alarms that need attention.

    `behind` are the groups whose lag grows fastest, then those with the largest lag. The
    next three leave out groups whose lag is an alarm already:

    * `unread` groups are not stopped and have unread messages in a queue that no member
      serves.
    * `stopped_behind` groups have unread messages and are stopped, or stopped in a topic.
    * `stalled` groups have members and unread messages, and handle none.

    `alarms` are the lasting alarms that were not acknowledged. `lasting_alarms` are kind and
    name of all lasting alarms. `failed_job_count` leaves out jobs whose failure is an alarm.
    """

    topics: int
    groups: int
    members: int
    lag: int
    behind: tuple[GroupRow, ...]
    unread: tuple[str, ...]
    stopped_behind: tuple[str, ...]
    stalled: tuple[str, ...]
    dead: DeadLetters
    alarms: tuple[AlarmRow, ...]
    alarm_count: int
    acknowledged_count: int
    lasting_alarms: frozenset[tuple[str, str]]
    failed_job_count: int


def overview(*, actor: Actor) -> Overview:
    """Return the figures of the first page. Raises Forbidden, MetadataUnavailable."""
    check_look(actor)
    ready_lags = ConsumerGroupTopic.objects.filter(state=SubscriptionState.READY, lag__gt=0)
    with reachable():
        # The groups with the largest lag, over all their topics. A query of their own finds them
        # by the subscriptions with lag, while groups() would sort all groups.
        candidates = [
            group_id
            for group_id, _ in ready_lags.order_by()
            .values_list("group")
            .annotate(total_lag=Sum("lag"))
            .order_by("-total_lag")[:CANDIDATES]
        ]
    # Without the minutes of the sparklines, which for 50 groups would cost more than the rest of
    # the page. The MOST groups that are shown get them below.
    largest_lag = ListQuery(sort="-lag", rows=CANDIDATES)
    behind = groups(query=largest_lag, actor=actor, lines=False, among=candidates).items
    lasting = alarms(
        query=ListQuery(rows=MOST), actor=actor, lasting=True, unacknowledged=True
    )
    with reachable():
        day_ago = before(database_now(), seconds=DAY_S)
        lasting_alarms = frozenset(_lasting().values_list("kind", "name"))
        alarmed_groups = {
            parse_subject(kind, name).group
            for kind, name in lasting_alarms
            if kind in LAG_ALARMS
        }
        # Groups with an alarm are left out after reading. As many more are read, so that MOST
        # others remain.
        limit = MOST + len(alarmed_groups)
        alarmed_jobs = [
            name for kind, name in lasting_alarms if kind == AlarmKind.JOB_FAILED
        ]
        failed = JobRun.objects.filter(
            state=JobState.FAILED, started_at__gte=day_ago
        ).exclude(name__in=alarmed_jobs)
        # Running groups with unread messages in a queue that no member serves. In a share group
        # queues have no owner, so it must be without members. Broadcasting groups are left out.
        unread = QueueOffset.objects.filter(
            Q(group__mode=GroupMode.CLUSTERING)
            | Q(group__mode=GroupMode.SHARE, group__members__isnull=True),
            owner__isnull=True,
            group__stopped=False,
            group__deleted_at__isnull=True,
            queue__head_seen__gt=F("committed"),
            group__subscriptions__lag__gte=config.alarm_min_unread,
            group__subscriptions__topic=F("queue__topic"),
        ).order_by("group__name")
        existing_groups = ConsumerGroup.objects.filter(deleted_at__isnull=True)
        stopped_groups = existing_groups.filter(stopped=True)
        # Of subscriptions: stopped in this topic, or with the whole group.
        stopped = Q(stopped=True) | Q(
            group__in=list(stopped_groups.values_list("pk", flat=True))
        )
        stopped_behind = existing_groups.filter(
            pk__in=ready_lags.filter(stopped).values("group")
        ).order_by("name")
        return Overview(
            topics=Topic.objects.filter(kind=TopicKind.NORMAL)
            .exclude(state=TopicState.DELETED)
            .count(),
            groups=existing_groups.count(),
            members=ConsumerGroupConsumer.objects.count(),
            lag=ready_lags.aggregate(total=Sum("lag"))["total"] or 0,
            behind=with_minutes(sorted(behind, key=_growth, reverse=True)[:MOST]),
            unread=_first(
                unread.values_list("group__name", flat=True).distinct()[:limit],
                alarmed_groups,
            ),
            stopped_behind=_first(
                stopped_behind.values_list("name", flat=True)[:limit], alarmed_groups
            ),
            stalled=_first(
                (
                    row.name
                    for row in behind
                    if row.progress and row.progress.trend.state == TrendState.STALLED
                ),
                alarmed_groups,
            ),
            dead=dead_letter_counts.list_dead_letters(),
            alarms=lasting.items,
            alarm_count=lasting.total,
            acknowledged_count=_lasting().filter(acknowledged_at__isnull=False).count(),
            lasting_alarms=lasting_alarms,
            failed_job_count=failed.count(),
        )


def _growth(row: GroupRow) -> tuple[float, int]:
    """Return the sort key of a group: growth of its lag in messages a second (0 if it does
    not grow), then its lag.
    """
    if row.progress is None or row.progress.trend.state != TrendState.FALLS_BEHIND:
        return 0.0, row.lag or 0
    return row.progress.trend.per_s or 0.0, row.lag or 0


def _first(names: Iterable[str], excluded: Collection[str]) -> tuple[str, ...]:
    """Return the first MOST names that are not excluded."""
    return tuple(islice((name for name in names if name not in excluded), MOST))


def _lasting() -> QuerySet[Alarm]:
    """Return the alarms that have begun and not ended."""
    return Alarm.objects.filter(since_at__isnull=False, ended_at__isnull=True)
