"""Events that charts mark: rebalances of a group, offset resets, and alarms. They are read
with a fixed number of queries.
"""

from __future__ import annotations

from datetime import datetime

from django.db.models import Count, Max, Min, Q, QuerySet
from msgspec import Struct

from metadata.actors import Actor
from metadata.db.clock import before, database_now, ms
from metadata.db.transactions import reachable
from metadata.listing.topic_lists import check_look
from metadata.models import Alarm, OffsetMove, Rebalance
from metadata.rules.alarm_rules import parse_subject

MAX_EVENTS = 40  # of each kind, the newest
# Newest offset moves of all groups that are searched for resets of a topic.
MAX_SEARCHED_MOVES = 5_000


class Mark(Struct, frozen=True):
    """An event. `kind` is rebalance, reset, undo, alarm or resolved.

    `detail` is the cause of a rebalance, the kind of an alarm, or the actor of a reset.
    `name` is the name of the alarm, or the topic of a reset, '' for several topics.
    """

    at_ms: int
    kind: str
    detail: str
    name: str = ""


def list_marks(*, for_s: int, actor: Actor, group: str = "", topic: str = "") -> list[Mark]:
    """Return the events of the last `for_s` seconds of a group, a topic, or all, oldest
    first.

    Rebalances are included for a group only. Those of all groups would cover the chart.
    """
    check_look(actor)
    with reachable():
        since = before(database_now(), seconds=for_s)
        marks = _list_alarm_marks(since, group, topic)
        moves: QuerySet[OffsetMove] = OffsetMove.objects.filter(at__gte=since)
        if group:
            moves = moves.filter(group__name=group, group__deleted_at__isnull=True)
        else:
            # Moves have no index on their time alone, so the search is bounded by their ids.
            newest = OffsetMove.objects.aggregate(id=Max("id"))["id"] or 0
            moves = moves.filter(pk__gt=newest - MAX_SEARCHED_MOVES)
        if topic:
            moves = moves.filter(queue__topic__name=topic)
        # A reset has a move for each queue.
        resets = (
            moves.order_by()
            .values("reset", "actor_name", "undoes")
            .annotate(
                first=Min("at"),
                topics=Count("queue__topic", distinct=True),
                topic=Min("queue__topic__name"),
            )
        )
        marks += [
            Mark(
                ms(reset["first"]),
                "undo" if reset["undoes"] else "reset",
                reset["actor_name"],
                reset["topic"] if reset["topics"] == 1 else "",
            )
            for reset in resets.order_by("-first")[:MAX_EVENTS]
        ]
        if group:
            rebalances = Rebalance.objects.filter(
                group__name=group, group__deleted_at__isnull=True, at__gte=since
            )
            columns = rebalances.order_by("-id").values_list("at", "cause")[:MAX_EVENTS]
            marks += [Mark(ms(at), "rebalance", cause) for at, cause in columns]
    return sorted(marks, key=lambda mark: mark.at_ms)


def _list_alarm_marks(since: datetime, group: str, topic: str) -> list[Mark]:
    rows = Alarm.objects.filter(
        Q(since_at__gte=since) | Q(since_at__isnull=False, ended_at__gte=since)
    )
    if group:
        rows = rows.filter(Q(name=group) | Q(name__startswith=f"{group}/"))
    elif topic:
        rows = rows.filter(Q(name__startswith=f"{topic}/") | Q(name__endswith=f"/{topic}"))
    marks = []
    for row in rows.order_by("-since_at")[:MAX_EVENTS]:
        # `group/topic` and `topic/queue` look alike, so the alarm's kind decides.
        about = parse_subject(row.kind, row.name)
        if (group and about.group != group) or (topic and about.topic != topic):
            continue
        if row.since_at is not None and row.since_at >= since:
            marks.append(Mark(ms(row.since_at), "alarm", row.kind, row.name))
        if row.ended_at is not None:
            marks.append(Mark(ms(row.ended_at), "resolved", row.kind, row.name))
    return marks
