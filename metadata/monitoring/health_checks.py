"""Alarms about failed jobs, and the end of alarms about nodes and queues that were removed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

from django.db.models import Max, Q

from metadata.db.clock import before, database_now
from metadata.db.transactions import reachable
from metadata.models import (
    Alarm,
    JobRun,
)
from metadata.monitoring.alarms import AlarmFindings
from metadata.rules.alarm_texts import error_text

JOBS_BACK_S = 7 * 86_400.0  # a job that failed earlier, and ran no more, is forgotten
# a job that comes so rarely is in trouble when it failed once, others twice
RARE_MINUTES = 10
MOST_NAMED = 8  # queues in a text


def list_ids(queues: Collection[int]) -> str:
    """Some ids as text.

    >>> list_ids([3, 1, 2])
    '1, 2, 3'
    """
    named = ", ".join(map(str, sorted(queues)[:MOST_NAMED]))
    return (
        named
        if len(queues) <= MOST_NAMED
        else f"{named} and {len(queues) - MOST_NAMED} more"
    )


def find_failed_jobs(every_minutes: dict[str, int]) -> AlarmFindings:
    """Jobs of which the last run failed; of those that come often, the last two."""
    seen = AlarmFindings()
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
            seen.add(run.name, error_text(run.detail[:500]), is_so=is_so)
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


def end_alarms_of_removed(*, nodes: Iterable[str], queues: Iterable[str]) -> int:
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
