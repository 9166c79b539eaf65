"""Events that charts mark: rebalances of a group, offset resets, and alarms. They are read
with a fixed number of queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Max, Min, Q, QuerySet

from metadata.actors import Actor
from metadata.db.clock import before, database_now, ms
from metadata.db.transactions import reachable
from metadata.listing.topic_lists import check_look
from metadata.models import Alarm, OffsetMove, Rebalance
from metadata.rules.alarm_rules import parse_subject

MAX_EVENTS = 40  # of each kind, the newest
# Newest offset moves of all groups that are searched for resets of a topic.
MAX_SEARCHED_MOVES = 5_000


@dataclass(frozen=True, slots=True)
class Mark:
    """An event. `kind` is rebalance, reset, undo, alarm or resolved.

    `what` is the cause of a rebalance, the kind of an alarm, or the actor of a reset.
    `name` is the name of the alarm, or the topic of a reset, '' for several topics.
    """

    at_ms: int
    kind: str
    what: str
    name: str = ""


def list_marks(*, for_s: int, actor: Actor, group: str = "", topic: str = "") -> list[Mark]:
    """Return the events of the last `for_s` seconds of a group, a topic, or all, oldest
    first.

    Rebalances are included for a group only. Those of all groups would cover the chart.
    """
    check_look(actor)
    with reachable():
        since = before(database_now(), seconds=for_s)
        marks = [*_alarms(since, group, topic), *_resets(since, group, topic)]
        if group:
            marks += _rebalances(since, group)
    return sorted(marks, key=lambda mark: mark.at_ms)


def _alarms(since: datetime, group: str, topic: str) -> list[Mark]:
    rows = Alarm.objects.filter(
        Q(since_at__gte=since) | Q(since_at__isnull=False, ended_at__gte=since)
    )
    if group:
        rows = rows.filter(Q(name=group) | Q(name__startswith=f"{group}/"))
    elif topic:
        rows = rows.filter(Q(name__startswith=f"{topic}/") | Q(name__endswith=f"/{topic}"))
    marks = []
    for row in rows.order_by("-since_at")[:MAX_EVENTS]:
        about = parse_subject(row.kind, row.name)
        if (group and about.group != group) or (topic and about.topic != topic):
            continue
        if row.since_at is not None and row.since_at >= since:
            marks.append(Mark(ms(row.since_at), "alarm", row.kind, row.name))
        if row.ended_at is not None:
            marks.append(Mark(ms(row.ended_at), "resolved", row.kind, row.name))
    return marks


def _resets(since: datetime, group: str, topic: str) -> list[Mark]:
    rows: QuerySet[OffsetMove] = OffsetMove.objects.filter(at__gte=since)
    if group:
        rows = rows.filter(group__name=group, group__deleted_at__isnull=True)
    else:
        newest = OffsetMove.objects.aggregate(id=Max("id"))["id"] or 0
        rows = rows.filter(pk__gt=newest - MAX_SEARCHED_MOVES)
    if topic:
        rows = rows.filter(queue__topic__name=topic)
    # A reset has a move for each queue.
    by_reset = rows.order_by().values("reset", "actor_name", "undoes")
    resets = by_reset.annotate(
        first=Min("at"),
        topics=Count("queue__topic", distinct=True),
        topic=Min("queue__topic__name"),
    )
    return [
        Mark(
            ms(reset["first"]),
            "undo" if reset["undoes"] else "reset",
            reset["actor_name"],
            reset["topic"] if reset["topics"] == 1 else "",
        )
        for reset in resets.order_by("-first")[:MAX_EVENTS]
    ]


def _rebalances(since: datetime, group: str) -> list[Mark]:
    rows = Rebalance.objects.filter(
        group__name=group, group__deleted_at__isnull=True, at__gte=since
    )
    columns = rows.order_by("-id").values_list("at", "cause")[:MAX_EVENTS]
    return [Mark(ms(at), "rebalance", cause) for at, cause in columns]
