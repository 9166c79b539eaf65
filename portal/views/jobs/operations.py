"""Records of the system about itself: jobs, audit log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
from portal.kit import pages, rows
from portal.kit.pages import Link, to
from portal.kit.tables import (
    Cell,
    Column,
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
)

MOST_SHOWN = 300  # characters of one side of a change


def jobs(request: HttpRequest) -> HttpResponse:
    """Schedules with their last runs, and all runs."""
    found = operation_lists.runs(wanted=wanted(request), actor=actor(request))
    columns, cancels = run_columns(), may(request, "admin")
    if cancels:
        columns.append(Column(_("Cancel")))
    hint = Empty(
        _("No job has run yet, or none fits the search. Does a worker run?"), "python manage.py qcluster"
    )
    return pages.show(
        request,
        "jobs",
        _("Jobs"),
        section="jobs",
        live=True,
        schedules=_schedules(request),
        table=listed(request, columns, found, row=lambda row: _run(row, cancels=cancels), empty=hint),
        query=request.GET.get("q", ""),
    )


def run_columns() -> list[Column]:
    """The columns of a list of runs."""
    return [
        Column(_("Started (UTC)"), "at"),
        Column(_("Job"), "name"),
        Column(_("State")),
        Column(_("Took"), right=True),
        Column(_("Did"), right=True),
        Column(_("Detail")),
    ]


def run_cells(row: RunRow, *, opens: bool = True) -> Sequence[Cell]:
    """A run in a list; `opens`: with a link to its own page."""
    return (
        when(row.started_at_ms),
        code(row.name, to("run", row.id) if opens else ""),
        badge(_("no sign of life"), "warn") if row.silent else rows.state(row.state),
        lasting(row.took_ms),
        number(row.count),
        long(_where(row)[:MOST_SHOWN] or None),
    )


def _run(row: RunRow, *, cancels: bool) -> Sequence[Cell]:
    cells = run_cells(row, opens=cancels)
    if not cancels:
        return cells
    if row.cancelling or row.state != "running":
        return (*cells, text(_("asked to end") if row.cancelling else None))
    return (*cells, text(_("cancel"), to("run-cancel", row.id)))


def _where(row: RunRow) -> str:
    """Return a run's result, or its progress while it runs."""
    if row.state != "running" or not row.stage:
        return row.detail
    if not row.total:
        return row.stage
    words = {"stage": row.stage, "done": row.done, "total": row.total}
    return str(_("%(stage)s: %(done)d of %(total)d") % words)


def _schedules(request: HttpRequest) -> Table:
    """Every job, when it ran last and runs next."""
    last = operation_lists.last_runs(actor=actor(request))
    following = dict(Schedule.objects.values_list("name", "next_run"))
    columns = [
        Column(_("Job")),
        Column(_("What it does")),
        Column(_("Every")),
        Column(_("Last run (UTC)")),
        Column(_("State")),
        Column(_("Next run (UTC)")),
    ]
    if may(request, "admin"):
        columns.append(Column(_("Now")))
    listed_jobs = [
        _schedule(name, job, last.get(name), following.get(name), admin=may(request, "admin"))
        for name, job in sorted(runs.known().items())
    ]
    return plain(columns, listed_jobs, Empty(_("This process knows of no jobs.")))


def _schedule(name: str, job: runs.Listed, run: RunRow | None, following: Any, *, admin: bool) -> list[Cell]:
    cells = [
        code(name, f"{to('jobs')}?q={name}"),
        text(_(job.text)),
        lasting(job.every_minutes * 60_000),
        when(run.started_at_ms if run else None),
        rows.state(run.state) if run else badge(_("never ran")),
        when(round(following.timestamp() * 1000) if following else None),
    ]
    return [*cells, text(_("run"), to("job-run", name))] if admin else cells


class RunJob(Action):
    """Runs a scheduled job now."""

    right = "admin"
    what = "job"
    section = "jobs"
    button = lazy("Run now")

    def heading(self) -> Text:
        """The page's title."""
        return _("Run %s now") % self.word("name")

    def back(self) -> str:
        """The jobs."""
        return to("jobs")

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe what the job does."""
        job = runs.known().get(self.word("name"))
        return Preview(effects=[_(job.text) if job else _("There is no such job.")])

    def run(self, fields: dict[str, Any]) -> Text:
        """Asks for it."""
        runs.ask(name=self.word("name"), actor=self.actor)
        return _("Job %s was asked for; it runs as soon as a worker is free.") % self.word("name")


class CancelRun(Action):
    """Asks a run of a job to end."""

    right = "admin"
    what = "job"
    section = "jobs"
    danger = True
    button = lazy("Ask it to end")

    def target(self) -> str:
        """Jobs are for whoever may do everything."""
        return "*"

    def heading(self) -> Text:
        """The page's title."""
        return _("Cancel run %d") % int(self.kwargs["run"])

    def back(self) -> str:
        """The run."""
        return to("run", self.kwargs["run"])

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe how the run would end."""
        return Preview(
            effects=[_("A long job looks for this now and then and ends; a short one ends by itself before.")]
        )

    def run(self, fields: dict[str, Any]) -> Text:
        """Asks."""
        runs.cancel(id=self.kwargs["run"], actor=self.actor)
        return _("The run was asked to end.")


def audit(request: HttpRequest) -> HttpResponse:
    """Show who changed what."""
    name = request.GET.get("name", "").replace("\0", "")[:500]
    found = operation_lists.audit(wanted=wanted(request), actor=actor(request), name=name)
    columns = (
        Column(_("When (UTC)"), "at"),
        Column(_("Who")),
        Column(_("Did")),
        Column(_("To"), "name"),
        Column(_("Before")),
        Column(_("After")),
    )
    hint = Empty(_("Nobody changed anything yet, or nothing fits the search."))
    mine = "" if may(request, "admin") else _("You see what was done to topics and groups that you manage.")
    intro = _("Changes of %s") % name if name else mine
    filters = [Link(_("All changes"), to("audit"))] if name else []
    table = listed(request, columns, found, row=_audit, empty=hint)
    return pages.list_page(request, _("Audit log"), table, section="audit", intro=intro, filters=filters)


def _audit(row: AuditRow) -> Sequence[Cell]:
    who = f"{row.actor_kind} {row.actor}" + (f" ({row.address})" if row.address else "")
    return (
        when(row.at_ms),
        text(who),
        text(f"{row.verb} {row.kind}"),
        rows.of_audit(row.kind, row.name),
        long(_values(row.before)),
        long(_values(row.after)),
    )


def _values(values: Mapping[str, Any] | None) -> str | None:
    if not values:
        return None
    shown = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]} …"
