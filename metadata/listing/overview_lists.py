"""Figures of the first page: how much there is, who is behind, what failed; always as many
queries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from django.db.models import F, Q, QuerySet, Sum

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
from metadata.rules.alarm_rules import parse_subject

MOST = 8  # groups, alarms or runs that are named
# groups, those furthest behind, among which those are looked for that fall behind fastest
CANDIDATES = 50
DAY_S = 86_400
OF_LAG = ("lag", "no_consumer")  # kinds of alarms that tell of a group's lag


@dataclass(frozen=True, slots=True)
class Overview:
    """Counts, and the first few of what needs a look.

    `behind`: those that fall behind fastest, then those that are furthest behind. `unread`
    groups have queues that nobody owns although there are messages and they are not
    stopped; `stopped_behind` ones were stopped, or a topic of theirs was, and messages
    wait; `stalled` ones have members and handle nothing. These three leave out groups whose
    lag is an alarm, and failed jobs those that are one. `alarms` are those that nobody
    acknowledged, `said` kind and name of all that last.
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
    said: frozenset[tuple[str, str]]
    failed_job_count: int


def overview(*, actor: Actor) -> Overview:
    check_look(actor)
    asked = ListQuery(sort="-lag", rows=CANDIDATES)
    behind = groups(wanted=asked, actor=actor, lines=False, among=_furthest()).items
    lasting = alarms(
        wanted=ListQuery(rows=MOST), actor=actor, lasting=True, unacknowledged=True
    )
    with reachable():
        day_ago = before(database_now(), seconds=DAY_S)
        said = frozenset(_lasting().values_list("kind", "name"))
        quiet = {parse_subject(kind, name).group for kind, name in said if kind in OF_LAG}
        most = MOST + len(quiet)
        jobs_said = [name for kind, name in said if kind == "job_failed"]
        failed = JobRun.objects.filter(state="failed", started_at__gte=day_ago).exclude(
            name__in=jobs_said
        )
        lags = ConsumerGroupTopic.objects.filter(state="ready", lag__gt=0)
        return Overview(
            topics=Topic.objects.filter(kind="normal").exclude(state="deleted").count(),
            groups=ConsumerGroup.objects.filter(deleted_at__isnull=True).count(),
            members=ConsumerGroupConsumer.objects.count(),
            lag=lags.aggregate(all=Sum("lag"))["all"] or 0,
            behind=with_minutes(sorted(behind, key=_growth, reverse=True)[:MOST]),
            unread=_first(_unread()[:most], quiet),
            stopped_behind=_first(_stopped_behind()[:most], quiet),
            stalled=_first(_stalled(behind), quiet),
            dead=dead_letter_counts.list_dead_letters(),
            alarms=lasting.items,
            alarm_count=lasting.total,
            acknowledged_count=_lasting().filter(acknowledged_at__isnull=False).count(),
            said=said,
            failed_job_count=failed.count(),
        )


def _furthest() -> list[int]:
    """Groups with the most unread messages, found without a look at those that have none."""
    rows = ConsumerGroupTopic.objects.filter(state="ready", lag__gt=0)
    with reachable():
        found = (
            rows.order_by().values_list("group").annotate(all=Sum("lag")).order_by("-all")
        )
        return [group for group, _ in found[:CANDIDATES]]


def _growth(row: GroupRow) -> tuple[float, int]:
    """By how much a group falls behind in a second, 0 if it does not; and how far it is
    behind.
    """
    if row.progress is None or row.progress.trend.state != "falls_behind":
        return 0.0, row.lag or 0
    return row.progress.trend.per_s or 0.0, row.lag or 0


def _first(names: Iterable[str], quiet: Collection[str]) -> tuple[str, ...]:
    return tuple(islice((name for name in names if name not in quiet), MOST))


def _stalled(rows: Iterable[GroupRow]) -> Iterator[str]:
    """Groups that have members and unread messages, and handle none."""
    return (
        one.name for one in rows if one.progress and one.progress.trend.state == "stalled"
    )


def _lasting() -> QuerySet[Alarm]:
    return Alarm.objects.filter(since_at__isnull=False, ended_at__isnull=True)


def _stopped_behind() -> QuerySet[ConsumerGroup, str]:
    """Groups that were stopped, or in a topic, and have unread messages there, by name."""
    groups = ConsumerGroup.objects.filter(deleted_at__isnull=True)
    stopped = Q(stopped=True) | Q(
        group__in=list(groups.filter(stopped=True).values_list("pk", flat=True))
    )
    rows = ConsumerGroupTopic.objects.filter(stopped, state="ready", lag__gt=0)
    return (
        groups.filter(pk__in=rows.values("group"))
        .order_by("name")
        .values_list("name", flat=True)
    )


def _unread() -> QuerySet[QueueOffset, str]:
    """Running groups with unread messages in a queue that nobody owns, by name."""
    rows = QueueOffset.objects.filter(
        Q(group__mode="clustering") | Q(group__mode="share", group__members__isnull=True),
        owner__isnull=True,
        group__stopped=False,
        group__deleted_at__isnull=True,
        queue__head_seen__gt=F("committed"),
        group__subscriptions__lag__gte=config.alarm_min_unread,
        group__subscriptions__topic=F("queue__topic"),
    )
    return rows.order_by("group__name").values_list("group__name", flat=True).distinct()
