"""Signs of trouble in metadata alone: groups that are behind, queues without a consumer,
jobs that fail.

Each look answers what it found, {name of the alarm: detail}, and the names of which nothing
is clear.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Exists, F, Max, OuterRef, Q

from metadata.config import config
from metadata.db.clock import before, database_now
from metadata.db.transactions import reachable
from metadata.grouping import grouped
from metadata.models import (
    Alarm,
    ConsumerGroupConsumer,
    ConsumerGroupTopic,
    JobRun,
    Queue,
    QueueOffset,
)
from metadata.rules import alarm_rules
from metadata.rules.alarm_texts import of_error, say

STALE_S = 600.0  # a lag that was not recorded for longer tells nothing
JOBS_BACK_S = 7 * 86_400.0  # a job that failed earlier, and ran no more, is forgotten
# a job that comes so rarely is in trouble when it failed once, others twice
RARE_MINUTES = 10
MOST_NAMED = 8  # queues in a text


@dataclass(slots=True)
class Found:
    """Findings of a look: {name of the alarm: detail}, the worst first; and what it could
    not tell.
    """

    found: dict[str, str] = field(default_factory=dict)
    unclear: set[str] = field(default_factory=set)

    def add(self, name: str, detail: str, *, is_so: bool | None = True) -> None:
        """One thing that is so, is not, or about which nothing is clear (None)."""
        if is_so:
            self.found[name] = detail
        elif is_so is None:
            self.unclear.add(name)


def behind() -> Found:
    """Subscriptions with more unread messages, or older ones, than their group's limits
    allow.

    One that was stopped by hand is meant to fall behind.
    """
    rows = _reading().filter(lag__gt=0, topic__kind="normal").order_by(F("lag").desc())
    columns = (
        "group__name",
        "topic__name",
        "lag",
        "lag_ms",
        "lag_at",
        "group__alarm_lag",
        "group__alarm_lag_s",
    )
    seen = Found()
    with reachable():
        fresh = before(database_now(), seconds=STALE_S)
        for group, topic, lag, lag_ms, lag_at, most, most_s in rows.values_list(*columns):
            age_s = (lag_ms or 0) / 1000
            # A few old messages of a trial are no alarm, unless the group has a limit of
            # its own.
            is_old = lag >= config.alarm_min_unread or most_s is not None
            passed = alarm_rules.either(
                alarm_rules.passed(lag, most or config.alarm_lag),
                is_old and alarm_rules.passed(age_s, most_s or config.alarm_lag_s),
            )
            detail = say("behind", messages=lag, minutes=round(age_s / 60))
            seen.add(
                f"{group}/{topic}",
                detail,
                is_so=None if lag_at is None or lag_at < fresh else passed,
            )
    return seen


def hold(seen: Found, *, topics: Collection[str]) -> Found:
    """Let a look find nothing new at subscriptions of some topics, whose node is away: one
    alarm is enough.

    Their alarms that last go on lasting.
    """
    held = {name for name in seen.found if name.partition("/")[2] in topics}
    found = {name: detail for name, detail in seen.found.items() if name not in held}
    return Found(found, seen.unclear | held)


def _reading() -> Any:
    """The subscriptions that ought to be read: those of a casual group only while somebody
    is in it.
    """
    used = Q(group__casual=False) | Exists(
        ConsumerGroupConsumer.objects.filter(group=OuterRef("group"))
    )
    return ConsumerGroupTopic.objects.filter(
        used,
        state="ready",
        stopped=False,
        group__stopped=False,
        group__deleted_at__isnull=True,
    )


def idle() -> Found:
    """Subscriptions with unread messages in queues that no consumer owns, and share groups
    without any.
    """
    rows = QueueOffset.objects.filter(
        Q(group__mode="clustering") | Q(group__mode="share", group__members__isnull=True),
        owner__isnull=True,
        queue__state__in=(Queue.State.READ_WRITE, Queue.State.READ_ONLY),
        queue__head_seen__gt=F("committed"),
        group__subscriptions__in=_reading().filter(
            lag__gte=config.alarm_min_unread, topic__kind="normal"
        ),
        group__subscriptions__topic=F("queue__topic"),
    )
    columns = ("group__name", "queue__topic__name", "queue_id", "queue__number")
    with reachable():
        found = rows.order_by("queue_id").values_list(
            *columns, "group__subscriptions__stopped_queues"
        )
        lone = grouped(
            ((group, topic), number)
            for group, topic, queue, number, off in found
            if queue not in off
        )
    seen = Found()
    for (group, topic), queues in lone.items():
        named = ", ".join(f"{topic}/{one}" for one in sorted(queues)[:MOST_NAMED])
        more = len(queues) - MOST_NAMED
        what = (
            say("idle_more", queues=named, more=more)
            if more > 0
            else say("idle", queues=named)
        )
        seen.add(f"{group}/{topic}", what)
    return seen


def numbers(queues: Collection[int]) -> str:
    """Some ids as text.

    >>> numbers([3, 1, 2])
    '1, 2, 3'
    """
    named = ", ".join(map(str, sorted(queues)[:MOST_NAMED]))
    return (
        named
        if len(queues) <= MOST_NAMED
        else f"{named} and {len(queues) - MOST_NAMED} more"
    )


def failed_jobs(every_minutes: dict[str, int]) -> Found:
    """Jobs of which the last run failed; of those that come often, the last two."""
    seen = Found()
    with reachable():
        since = before(database_now(), seconds=JOBS_BACK_S)
        over = JobRun.objects.filter(state__in=("done", "failed"))
        latest = (
            over.order_by()
            .values("name")
            .annotate(last=Max("id"))
            .values_list("last", flat=True)
        )
        bad = over.filter(pk__in=list(latest), state="failed", started_at__gte=since)
        for run in bad.order_by("-id"):
            often = every_minutes.get(run.name, RARE_MINUTES) < RARE_MINUTES
            is_so = None if often and _went_well_before(run, since) else True
            seen.add(run.name, of_error(run.detail[:500]), is_so=is_so)
    return seen


def _went_well_before(run: JobRun, since: datetime) -> bool:
    rows = JobRun.objects.filter(name=run.name, pk__lt=run.pk, state__in=("done", "failed"))
    last = (
        rows.filter(started_at__gte=since)
        .order_by("-id")
        .values_list("state", flat=True)
        .first()
    )
    return last != "failed"


def end_of_the_gone(*, nodes: Iterable[str], queues: Iterable[str]) -> int:
    """End alarms at nodes, and at queues (`topic/queue`), that are there no more; return
    how many.
    """
    with reachable():
        lasting = Alarm.objects.filter(ended_at__isnull=True)
        of_nodes = Q(kind__in=("node_low", "node_full")) & ~Q(name__in=list(nodes))
        gone = list(lasting.filter(of_nodes).values_list("pk", flat=True))
        known = set(queues)
        of_queues = lasting.filter(kind="not_cleaned").values_list("pk", "name")
        gone += [pk for pk, name in of_queues if name not in known]
        return Alarm.objects.filter(pk__in=gone).update(
            ended_at=database_now(), pending_since=None
        )
