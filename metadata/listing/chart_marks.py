"""Events that charts mark: rebalances of a group, resets of offsets, and alarms; always as
many queries.
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

MOST = 40  # of a kind, the newest
# newest moves of offsets, of all groups, among which resets of a topic are looked for
LOOKED_AT = 5_000


@dataclass(frozen=True, slots=True)
class Mark:
    """One event; `kind` is rebalance, reset, undo, alarm or resolved.

    `what` is the cause of a rebalance, the kind of an alarm, or who reset; `name` is that
    of the alarm, or the topic of a reset, '' if it was of several.
    """

    at_ms: int
    kind: str
    what: str
    name: str = ""


def list_marks(*, for_s: int, actor: Actor, group: str = "", topic: str = "") -> list[Mark]:
    """Return the events of the last `for_s` seconds of a group, a topic, or all, oldest
    first.

    Rebalances are told of a group only: those of all would hide the chart.
    """
    check_look(actor)
    with reachable():
        since = before(database_now(), seconds=for_s)
        found = [*_alarms(since, group, topic), *_resets(since, group, topic)]
        if group:
            found += _rebalances(since, group)
    return sorted(found, key=lambda one: one.at_ms)


def _alarms(since: datetime, group: str, topic: str) -> list[Mark]:
    rows = Alarm.objects.filter(
        Q(since_at__gte=since) | Q(since_at__isnull=False, ended_at__gte=since)
    )
    if group:
        rows = rows.filter(Q(name=group) | Q(name__startswith=f"{group}/"))
    elif topic:
        rows = rows.filter(Q(name__startswith=f"{topic}/") | Q(name__endswith=f"/{topic}"))
    found = []
    for row in rows.order_by("-since_at")[:MOST]:
        about = parse_subject(row.kind, row.name)
        if (group and about.group != group) or (topic and about.topic != topic):
            continue
        if row.since_at is not None and row.since_at >= since:
            found.append(Mark(ms(row.since_at), "alarm", row.kind, row.name))
        if row.ended_at is not None:
            found.append(Mark(ms(row.ended_at), "resolved", row.kind, row.name))
    return found


def _resets(since: datetime, group: str, topic: str) -> list[Mark]:
    rows: QuerySet[OffsetMove] = OffsetMove.objects.filter(at__gte=since)
    if group:
        rows = rows.filter(group__name=group, group__deleted_at__isnull=True)
    else:
        newest = OffsetMove.objects.aggregate(id=Max("id"))["id"] or 0
        rows = rows.filter(pk__gt=newest - LOOKED_AT)
    if topic:
        rows = rows.filter(queue__topic__name=topic)
    of = rows.order_by().values("reset", "actor_name", "undoes")
    told = of.annotate(
        first=Min("at"),
        topics=Count("queue__topic", distinct=True),
        topic=Min("queue__topic__name"),
    )
    return [
        Mark(
            ms(one["first"]),
            "undo" if one["undoes"] else "reset",
            one["actor_name"],
            one["topic"] if one["topics"] == 1 else "",
        )
        for one in told.order_by("-first")[:MOST]
    ]


def _rebalances(since: datetime, group: str) -> list[Mark]:
    rows = Rebalance.objects.filter(
        group__name=group, group__deleted_at__isnull=True, at__gte=since
    )
    told = rows.order_by("-id").values_list("at", "cause")[:MOST]
    return [Mark(ms(at), "rebalance", cause) for at, cause in told]
