"""Lists of the portal: audit log, alarms, runs of jobs, reports."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.db.models import Max, Q
from msgspec import Struct

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
from metadata.rules.rights import Right
from metadata.rules.topics.states import TopicState

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
# Topics and groups whose queues and subscriptions are included, too. Each costs a condition
# of its own in the query.
MAX_MANAGED = 200
REPORTS = ListLayout(
    search_in=("name", "engine"), sorts={"at": "id", "name": "name"}, default="-at"
)
RUNS = ListLayout(
    search_in=("name", "detail", "state"), sorts={"at": "id", "name": "name"}, default="-at"
)


class AuditRow(Struct, frozen=True):
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


class AlarmRow(Struct, frozen=True):
    """An alarm. `since_ms` and `ended_at_ms` are the begin and end of its last occurrence,
    the end None while it lasts.

    `facts` are the values in the detail. `times` is the number of occurrences.
    `acknowledged_by` is '' if the last occurrence was not acknowledged.
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


class RunRow(RunFacts, frozen=True, kw_only=True):
    """A run in a list. `took_ms` is None while it lasts."""

    took_ms: int | None


class ReportItem(Struct, frozen=True):
    """A report in a list. `settings` are those of the request, `engine` is spark or direct."""

    id: int
    name: str
    engine: str
    made_at_ms: int
    settings: Mapping[str, Any]


def audit(
    *,
    query: ListQuery,
    actor: Actor,
    name: str = "",
    who: str = "",
    since: date | None = None,
    until: date | None = None,
) -> ListPage[AuditRow]:
    """Return entries of the audit log, latest first: all, or those about the object `name`,
    by the actor `who`, and of the days `since` to `until` (UTC).

    Administrators see everything. Other users see changes of topics and groups that they
    may manage, without addresses. They do not see rights, accounts, keys and nodes.
    """
    check_look(actor)
    sees_all = access.may_everything(actor)
    rows = AuditLog.objects.all() if sees_all else AuditLog.objects.filter(_managed(actor))
    if who:
        rows = rows.filter(actor_name=who)
    if since is not None:
        rows = rows.filter(at__gte=datetime.combine(since, time(), UTC))
    if until is not None:
        # The day itself is included, so the range ends at the next midnight.
        rows = rows.filter(at__lt=datetime.combine(until, time(), UTC) + timedelta(days=1))
    if name:
        # Subscriptions are named group/topic, queues topic/number.
        rows = rows.filter(
            Q(name=name) | Q(name__startswith=f"{name}/") | Q(name__endswith=f"/{name}")
        )
    page = select_page(rows, query=query, layout=AUDIT)
    return page.map(
        lambda row: make_view(
            AuditRow, row, actor=row.actor_name, address=row.address if sees_all else ""
        )
    )


def _managed(actor: Actor) -> Q:
    """Return the condition for entries about topics and groups that an actor may manage.

    Entries of a deleted object are included if an existing object has its name.
    """
    with reachable():
        topics = list(
            Topic.objects.exclude(state=TopicState.DELETED).values_list("name", flat=True)
        )
        groups = list(
            ConsumerGroup.objects.filter(deleted_at__isnull=True).values_list(
                "name", flat=True
            )
        )
    topics = [name for name in topics if access.may(actor, Right.MANAGE, name)]
    groups = [
        name for name in groups if access.may(actor, Right.MANAGE, name, what="group")
    ]
    condition = Q(kind="topic", name__in=topics) | Q(
        kind__in=("group", "dead"), name__in=groups
    )
    # SQL has no IN for prefixes, so each name is a LIKE of its own.
    for kind, names in (("queue", topics), ("subscription", groups)):
        for name in names[:MAX_MANAGED]:
            condition |= Q(kind=kind, name__startswith=f"{name}/")
    return condition


def alarms(
    *,
    query: ListQuery,
    actor: Actor,
    lasting: bool | None = None,
    unacknowledged: bool = False,
) -> ListPage[AlarmRow]:
    """Return alarms, latest first. `lasting`: only those that last (True) or have ended
    (False).
    """
    check_look(actor)
    rows = Alarm.objects.filter(since_at__isnull=False)
    if lasting is not None:
        rows = rows.filter(ended_at__isnull=lasting)
    if unacknowledged:
        rows = rows.filter(acknowledged_at__isnull=True)
    page = select_page(rows, query=query, layout=ALARMS)
    return page.map(
        lambda row: make_view(AlarmRow, row, since_ms=ms(row.since_at or row.first_at))
    )


def runs(*, query: ListQuery, actor: Actor, pipeline: bool = False) -> ListPage[RunRow]:
    """Return runs of all jobs, or only those of the data pipeline, latest first."""
    check_look(actor)
    rows = JobRun.objects.all()
    if pipeline:
        rows = rows.filter(Q(name__startswith=SPARK) | Q(name=PURGE))
    page = select_page(rows, query=query, layout=RUNS)
    with reachable():
        now_ms = ms(database_now())
    return page.map(lambda row: _run_row(row, now_ms))


def reports(*, query: ListQuery, actor: Actor) -> ListPage[ReportItem]:
    """Return reports, latest first. Needs `admin` on everything, because they include every
    topic.
    """
    access.require(actor, Right.ADMIN, "*", what="report")
    page = select_page(Report.objects.all(), query=query, layout=REPORTS)
    return page.map(lambda row: make_view(ReportItem, row))


def last_runs(*, actor: Actor) -> dict[str, RunRow]:
    """Return the last run of each job, by name of the job."""
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
            row.name: _run_row(row, now_ms)
            for row in JobRun.objects.filter(pk__in=list(latest))
        }


def lease_holders(*, actor: Actor) -> dict[str, str]:
    """Return the process that holds each lease now, as host:pid, by the lease's name."""
    check_look(actor)
    with reachable():
        leases = Lease.objects.filter(expires_at__gt=database_now())
        return dict(leases.values_list("name", "holder"))


def _run_row(row: JobRun, now_ms: int) -> RunRow:
    took = ms(row.finished_at) - ms(row.started_at) if row.finished_at else None
    return make_view(
        RunRow,
        row,
        took_ms=took,
        cancelling=row.cancel_asked,
        silent=is_silent(row, now_ms),
    )
