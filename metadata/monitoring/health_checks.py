"""Alarms about failed jobs, and the end of alarms about nodes and queues that were
removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from django.db.models import Max, Q

from metadata.db.clock import before, database_now
from metadata.db.transactions import reachable
from metadata.models import (
    Alarm,
    JobRun,
)
from metadata.monitoring.alarms import AlarmFindings
from metadata.rules.alarm_rules import AlarmKind
from metadata.rules.alarm_texts import error_text
from metadata.rules.jobs import JobState

JOB_MEMORY_S = 7 * 86_400.0  # older failures are ignored
# A job that runs this rarely is in trouble after a single failure, others after two.
RARE_MINUTES = 10
MAX_NAMED = 8  # ids in a text


def list_ids(queues: Collection[int]) -> str:
    """Return ids as text, shortened.

    >>> list_ids([3, 1, 2])
    '1, 2, 3'
    """
    listed = ", ".join(map(str, sorted(queues)[:MAX_NAMED]))
    return (
        listed
        if len(queues) <= MAX_NAMED
        else f"{listed} and {len(queues) - MAX_NAMED} more"
    )


def find_failed_jobs(every_minutes: dict[str, int]) -> AlarmFindings:
    """Find jobs whose last run failed; for frequent jobs, the last two runs.

    `every_minutes` is the interval of each job, by name.
    """
    findings = AlarmFindings()
    with reachable():
        since = before(database_now(), seconds=JOB_MEMORY_S)
        ended_runs = JobRun.objects.filter(state__in=(JobState.DONE, JobState.FAILED))
        # A single query for all jobs: their history has many rows.
        latest = (
            ended_runs.order_by()
            .values("name")
            .annotate(last=Max("id"))
            .values_list("last", flat=True)
        )
        for run in ended_runs.filter(
            pk__in=list(latest), state=JobState.FAILED, started_at__gte=since
        ).order_by("-id"):
            is_so: bool | None = True
            if every_minutes.get(run.name, RARE_MINUTES) < RARE_MINUTES:
                # A single failure neither begins nor ends the alarm of a frequent job.
                earlier = ended_runs.filter(
                    name=run.name, pk__lt=run.pk, started_at__gte=since
                )
                state = earlier.order_by("-id").values_list("state", flat=True).first()
                is_so = True if state == JobState.FAILED else None
            findings.add(run.name, error_text(run.detail[:500]), is_so=is_so)
    return findings


def end_alarms_of_removed(*, nodes: Iterable[str], queues: Iterable[str]) -> int:
    """End alarms at nodes and queues (`topic/queue`) that no longer exist. Return how
    many.
    """
    with reachable():
        active = Alarm.objects.filter(ended_at__isnull=True)
        of_nodes = Q(kind__in=(AlarmKind.NODE_LOW, AlarmKind.NODE_FULL)) & ~Q(
            name__in=list(nodes)
        )
        orphaned = list(active.filter(of_nodes).values_list("pk", flat=True))
        # Compared here: with the names of all queues the statement would be too long.
        existing = set(queues)
        of_queues = active.filter(kind=AlarmKind.NOT_CLEANED).values_list("pk", "name")
        orphaned += [pk for pk, name in of_queues if name not in existing]
        return Alarm.objects.filter(pk__in=orphaned).update(
            ended_at=database_now(), pending_since=None
        )
