"""Records of the system about itself: jobs, audit log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy
from django_q.models import Schedule

from metadata.jobs import runs
from metadata.listing import operation_lists
from metadata.listing.operation_lists import AuditRow, RunRow
from portal.actions.action import Action, Preview
from portal.auth.access import actor, may
from portal.kit import pages, places, rows
from portal.kit.pages import Link, to
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    Empty,
    Table,
    Text,
    badge,
    code,
    lasting,
    listed,
    long,
    number,
    plain,
    text,
    wanted,
    when,
    with_words,
)

MOST_SHOWN = 300  # characters of one side of a change


def jobs(request: HttpRequest) -> HttpResponse:
    """Schedules with their last runs, and all runs."""
    found = operation_lists.runs(query=wanted(request), actor=actor(request))
    cancels = may(request, "admin")
    columns = run_columns(opens=cancels)
    if cancels:
        columns.append(Column(_("Cancel"), _ending))
    hint = Empty(
        _("No matching runs. Check that a worker is running."), "python manage.py qcluster"
    )
    return pages.show(
        request,
        "jobs/jobs",
        _("Jobs"),
        section="jobs",
        live=True,
        schedules=_schedules(request),
        loops=_loops(request),
        table=listed(request, columns, found, empty=hint),
        query=request.GET.get("q", ""),
    )


def run_columns(*, opens: bool = True) -> list[Column[RunRow]]:
    """Return the columns of a list of runs; `opens`: with links to their own pages."""
    return [
        Column(_("Started"), lambda one: when(one.started_at_ms), "at"),
        Column(
            _("Job"), lambda one: code(one.name, to("run", one.id) if opens else ""), "name"
        ),
        Column(_("State"), _state),
        Column(_("Duration"), lambda one: lasting(one.took_ms), right=True),
        Column(_("Processed"), lambda one: number(one.count), right=True),
        Column(_("Detail"), lambda one: long(_where(one)[:MOST_SHOWN] or None)),
    ]


def _state(one: RunRow) -> Cell:
    return badge(_("not responding"), "warn") if one.silent else rows.state(one.state)


def _ending(one: RunRow) -> Cell:
    if one.cancelling:
        return text(_("cancel requested"))
    return (
        text(_("cancel"), to("run-cancel", one.id))
        if one.state == "running"
        else text(None)
    )


def _where(row: RunRow) -> str:
    """Return a run's result, or its progress while it runs."""
    if row.state != "running" or not row.stage:
        return row.detail
    if not row.total:
        return row.stage
    words = {"stage": row.stage, "done": row.done, "total": row.total}
    return str(_("%(stage)s: %(done)d of %(total)d") % words)


def _schedules(request: HttpRequest) -> Table:
    """Return every job, when it ran last and runs next."""
    last = operation_lists.last_runs(actor=actor(request))
    following = dict(Schedule.objects.values_list("name", "next_run"))
    columns: list[Column[tuple[str, runs.ScheduledJob]]] = [
        Column(_("Job"), lambda one: code(one[0], f"{to('jobs')}?q={one[0]}")),
        Column(_("What it does"), lambda one: text(_(one[1].text))),
        Column(_("Every"), lambda one: lasting(one[1].every_minutes * 60_000)),
        Column(
            _("Last run"),
            lambda one: when(last[one[0]].started_at_ms if one[0] in last else None),
        ),
        Column(_("State"), lambda one: _last_state(last.get(one[0]))),
        Column(_("Next run"), lambda one: _next(following.get(one[0]))),
    ]
    if may(request, "admin"):
        columns.append(Column(_("Now"), lambda one: text(_("run"), to("job-run", one[0]))))
    return plain(columns, sorted(runs.scheduled_jobs().items()), Empty(_("No jobs")))


def _loops(request: HttpRequest) -> Table:
    """Return the loops of the broker processes, with the process that makes the passes."""
    holders = operation_lists.lease_holders(actor=actor(request))
    columns: list[Column[runs.BrokerLoop]] = [
        Column(_("Loop"), lambda loop: code(loop.name)),
        Column(_("What it does"), lambda loop: text(_(loop.purpose))),
        Column(_("Every"), _pause),
        Column(_("Runs in"), _processes),
        Column(_("Lease held by"), lambda loop: text(holders.get(loop.lease))),
    ]
    return plain(columns, list(runs.broker_loops()), Empty(_("No loops")))


def _pause(loop: runs.BrokerLoop) -> Cell:
    return (
        lasting(round(loop.every_s * 1000)) if loop.every_s else text(_("until an event"))
    )


def _processes(loop: runs.BrokerLoop) -> Cell:
    if loop.lease:
        return text(_("one process of all brokers"))
    if loop.per_node:
        return text(_("every broker process, once for each node"))
    return text(_("every broker process"))


def _last_state(run: RunRow | None) -> Cell:
    return rows.state(run.state) if run else badge(_("never ran"))


def _next(at: datetime | None) -> Cell:
    return when(round(at.timestamp() * 1000) if at else None)


class RunJob(Action):
    right = "admin"
    what = "job"
    section = "jobs"
    button = lazy("Run now")
    title = lazy("Run %(name)s now")
    back_to = ("jobs",)

    def preview(self, fields: dict[str, Any]) -> Preview:
        job = runs.scheduled_jobs().get(self.name)
        return Preview(effects=[_(job.text) if job else _("Unknown job")])

    def run(self, fields: dict[str, Any]) -> Text:
        runs.run_now(name=self.name, actor=self.actor)
        return _("Job %s was queued; it runs as soon as a worker is free.") % self.name


class CancelRun(Action):
    right = "admin"
    what = "job"
    section = "jobs"
    danger = True
    button = lazy("Cancel the run")
    everywhere = True
    title = lazy("Cancel run %(run)d")
    back_to = ("run", "run")
    would = lazy(
        "A long job checks for this request regularly and then ends. A short job may "
        "complete first."
    )

    def run(self, fields: dict[str, Any]) -> Text:
        runs.cancel(id=self.kwargs["run"], actor=self.actor)
        return _("The run was asked to stop.")


def audit(request: HttpRequest) -> HttpResponse:
    name, who = (
        request.GET.get(one, "").replace("\0", "")[:500] for one in ("name", "who")
    )
    since, until = (_day(request.GET.get(one, "")) for one in ("since", "until"))
    found = operation_lists.audit(
        query=wanted(request),
        actor=actor(request),
        name=name,
        who=who,
        since=since,
        until=until,
    )
    columns: Columns[AuditRow] = [
        Column(_("When"), lambda one: when(one.at_ms), "at"),
        Column(_("Who"), lambda one: _who(request, one)),
        Column(_("Action"), lambda one: text(rows.deed(one.verb, one.kind))),
        Column(_("Target"), lambda one: rows.of_audit(one.kind, one.name), "name"),
        Column(_("Before"), lambda one: long(_values(one.before))),
        Column(_("After"), lambda one: long(_values(one.after))),
    ]
    hint = Empty(_("No matching changes"))
    mine = (
        ""
        if may(request, "admin")
        else _("You see what was done to topics and groups that you manage.")
    )
    intro = _("Changes of %s") % name if name else mine
    filters = [Link(_("All changes"), to("audit"))] if name else []
    table = listed(request, columns, found, empty=hint)
    place = {"section": "audit", **places.of_list(request, "audit", name=name)}
    labels = {"who": _("Who"), "since": _("From"), "until": _("To")}
    asked = [
        {
            "name": one,
            "label": labels[one],
            "type": "text" if one == "who" else "date",
            "value": shown or "",
        }
        for one, shown in (
            ("who", who),
            ("since", since and since.isoformat()),
            ("until", until and until.isoformat()),
        )
    ]
    chips = pages.chips(request, labels)
    return pages.list_page(
        request,
        _("Audit log"),
        table,
        intro=intro,
        filters=filters,
        asked=asked,
        chips=chips,
        **place,
    )


def _day(word: str) -> date | None:
    """Return the day of a filter; what is none is ignored."""
    with suppress(ValueError):
        return date.fromisoformat(word)
    return None


def _who(request: HttpRequest, one: AuditRow) -> Cell:
    """Return who changed something, with a link to all that he did."""
    kind = rows.ACTORS.get(one.actor_kind, one.actor_kind)
    return Cell(
        (f"{kind} {one.actor}", one.address),
        "who",
        with_words(request, who=one.actor, page=""),
    )


def _values(values: Mapping[str, Any] | None) -> str | None:
    if not values:
        return None
    shown = ", ".join(
        f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items()
    )
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]} …"
