"""Records of the system about itself, as rows of lists: audit log, alarms, runs of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.db.models import Max, Q

from metadata.actors import Actor
from metadata.db import access
from metadata.db.clock import database_now, ms
from metadata.db.rows import make_view
from metadata.db.transactions import reachable
from metadata.jobs.pipeline import PURGE, SPARK
from metadata.jobs.runs import RunFacts, is_silent
from metadata.listing.pages import ListLayout, ListPage, ListQuery, select_page
from metadata.listing.topic_lists import check_look
from metadata.models import Alarm, AuditLog, ConsumerGroup, JobRun, Lease, Report, Topic

AUDIT = ListLayout(
    search_in=("name", "actor_name", "verb", "kind"),
    sorts={"at": "id", "name": "name"},
    default="-at",
)
ALARMS = ListLayout(
    search_in=("name", "detail", "kind"),
    sorts={"since": "since_at", "at": "last_at", "kind": "kind", "name": "name"},
    default="-since",
)
# names whose queues and subscriptions are looked for, too: each is a condition of its own
MOST_MANAGED = 200
REPORTS = ListLayout(
    search_in=("name", "engine"), sorts={"at": "id", "name": "name"}, default="-at"
)
RUNS = ListLayout(
    search_in=("name", "detail", "state"), sorts={"at": "id", "name": "name"}, default="-at"
)


@dataclass(frozen=True, slots=True)
class AuditRow:
    id: int
    at_ms: int
    actor_kind: str
    actor: str
    address: str
    verb: str
    kind: str
    name: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class AlarmRow:
    """An alarm; `since_ms` and `ended_at_ms` are of its last occurrence, the latter None
    while it lasts.

    `facts` is what the detail is put into words of. `times` counts the spells;
    `acknowledged_by` is '' while
    nobody looks after the present one.
    """

    kind: str
    name: str
    detail: str
    facts: Mapping[str, Any] | None
    count: int
    times: int
    since_ms: int
    last_at_ms: int
    ended_at_ms: int | None
    acknowledged_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow(RunFacts):
    """A run in a list; `took_ms` is None while it lasts."""

    took_ms: int | None


@dataclass(frozen=True, slots=True)
class ReportItem:
    """A report in a list; `settings` say what was asked for, `engine` what made it."""

    id: int
    name: str
    engine: str
    made_at_ms: int
    settings: Mapping[str, Any]


def audit(
    *,
    wanted: ListQuery,
    actor: Actor,
    name: str = "",
    who: str = "",
    since: date | None = None,
    until: date | None = None,
) -> ListPage[AuditRow]:
    """Changes, the latest first, or those of what is called `name`, by `who`, and of some
    days (UTC).

    Administrators see all. Others see what was done to topics and groups that they may
    manage, and nobody's address: rights, accounts, keys and nodes are not for everybody who
    has logged in.
    """
    check_look(actor)
    full = access.may_everything(actor)
    rows = AuditLog.objects.all() if full else AuditLog.objects.filter(_managed(actor))
    if who:
        rows = rows.filter(actor_name=who)
    if since is not None:
        rows = rows.filter(at__gte=datetime.combine(since, time(), UTC))
    if until is not None:
        rows = rows.filter(at__lt=datetime.combine(until, time(), UTC) + timedelta(days=1))
    if name:
        rows = rows.filter(
            Q(name=name) | Q(name__startswith=f"{name}/") | Q(name__endswith=f"/{name}")
        )
    return select_page(rows, wanted=wanted, manner=AUDIT).map(
        lambda row: make_view(
            AuditRow, row, actor=row.actor_name, address=row.address if full else ""
        )
    )


def _managed(actor: Actor) -> Q:
    """The rows about topics and groups that an actor may manage; for deleted ones, the
    name's next bearer.
    """
    with reachable():
        topics = list(Topic.objects.exclude(state="deleted").values_list("name", flat=True))
        groups = list(
            ConsumerGroup.objects.filter(deleted_at__isnull=True).values_list(
                "name", flat=True
            )
        )
    topics = [name for name in topics if access.may(actor, "manage", name)]
    groups = [name for name in groups if access.may(actor, "manage", name, what="group")]
    found = Q(kind="topic", name__in=topics) | Q(
        kind__in=("group", "dead"), name__in=groups
    )
    # called topic/queue, group/topic
    for kind, names in (("queue", topics), ("subscription", groups)):
        for name in names[:MOST_MANAGED]:
            found |= Q(kind=kind, name__startswith=f"{name}/")
    return found


def alarms(
    *,
    wanted: ListQuery,
    actor: Actor,
    lasting: bool | None = None,
    unacknowledged: bool = False,
) -> ListPage[AlarmRow]:
    """Alarms, the latest first; `lasting`: only those that have not ended, or only those
    that have.
    """
    check_look(actor)
    rows = Alarm.objects.filter(since_at__isnull=False)
    if lasting is not None:
        rows = rows.filter(ended_at__isnull=lasting)
    if unacknowledged:
        rows = rows.filter(acknowledged_at__isnull=True)
    found = select_page(rows, wanted=wanted, manner=ALARMS)
    return found.map(
        lambda row: make_view(AlarmRow, row, since_ms=ms(row.since_at or row.first_at))
    )


def runs(*, wanted: ListQuery, actor: Actor, pipeline: bool = False) -> ListPage[RunRow]:
    """Run of jobs, the latest first; or only those of the data pipeline."""
    check_look(actor)
    rows = JobRun.objects.all()
    if pipeline:
        rows = rows.filter(Q(name__startswith=SPARK) | Q(name=PURGE))
    found = select_page(rows, wanted=wanted, manner=RUNS)
    with reachable():
        now_ms = ms(database_now())
    return found.map(lambda row: _run(row, now_ms))


def reports(*, wanted: ListQuery, actor: Actor) -> ListPage[ReportItem]:
    """Reports, the latest first. Needs `admin` on everything, because they tell of every
    topic.
    """
    access.require(actor, "admin", "*", what="report")
    found = select_page(Report.objects.all(), wanted=wanted, manner=REPORTS)
    return found.map(lambda row: make_view(ReportItem, row))


def last_runs(*, actor: Actor) -> dict[str, RunRow]:
    check_look(actor)
    with reachable():
        latest = (
            JobRun.objects.order_by()
            .values("name")
            .annotate(last=Max("id"))
            .values_list("last", flat=True)
        )
        now_ms = ms(database_now())
        return {
            row.name: _run(row, now_ms)
            for row in JobRun.objects.filter(pk__in=list(latest))
        }


def lease_holders(*, actor: Actor) -> dict[str, str]:
    """Return the process that holds each lease now, as host:pid, by the lease's name."""
    check_look(actor)
    with reachable():
        leases = Lease.objects.filter(expires_at__gt=database_now())
        return dict(leases.values_list("name", "holder"))


def _run(row: JobRun, now_ms: int) -> RunRow:
    took = ms(row.finished_at) - ms(row.started_at) if row.finished_at else None
    return make_view(
        RunRow,
        row,
        took_ms=took,
        cancelling=row.cancel_asked,
        silent=is_silent(row, now_ms),
    )
