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
from portal.kit import cells, navigation, pages
from portal.kit.pages import Link, page_url
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    EmptyHint,
    Table,
    Text,
    badge,
    code,
    duration,
    list_table,
    long,
    number,
    parse_list_query,
    simple_table,
    text,
    timestamp,
    url_with,
)

MAX_CHANGE_LENGTH = 300  # characters of one side of a change


def jobs(request: HttpRequest) -> HttpResponse:
    """Schedules with their last runs, and all runs."""
    found = operation_lists.runs(wanted=parse_list_query(request), actor=actor(request))
    cancels = may(request, "admin")
    columns = run_columns(opens=cancels)
    if cancels:
        columns.append(Column(_("Cancel"), _ending))
    hint = EmptyHint(
        _("No matching runs. Check that a worker is running."), "python manage.py qcluster"
    )
    return pages.render_page(
        request,
        "jobs/jobs",
        _("Jobs"),
        section="jobs",
        live=True,
        schedules=_schedules(request),
        table=list_table(request, columns, found, empty=hint),
        query=request.GET.get("q", ""),
    )


def run_columns(*, opens: bool = True) -> list[Column[RunRow]]:
    """Return the columns of a list of runs; `opens`: with links to their own pages."""
    return [
        Column(_("Started"), lambda row: timestamp(row.started_at_ms), "at"),
        Column(
            _("Job"),
            lambda row: code(row.name, page_url("run", row.id) if opens else ""),
            "name",
        ),
        Column(_("State"), _state),
        Column(_("Duration"), lambda row: duration(row.took_ms), right=True),
        Column(_("Processed"), lambda row: number(row.count), right=True),
        Column(_("Detail"), lambda row: long(_where(row)[:MAX_CHANGE_LENGTH] or None)),
    ]


def _state(one: RunRow) -> Cell:
    return badge(_("not responding"), "warn") if one.silent else cells.state(one.state)


def _ending(one: RunRow) -> Cell:
    if one.cancelling:
        return text(_("cancel requested"))
    return (
        text(_("cancel"), page_url("run-cancel", one.id))
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
    columns: list[Column[tuple[str, runs.Listed]]] = [
        Column(_("Job"), lambda row: code(row[0], f"{page_url('jobs')}?q={row[0]}")),
        Column(_("What it does"), lambda row: text(_(row[1].text))),
        Column(_("Every"), lambda row: duration(row[1].every_minutes * 60_000)),
        Column(
            _("Last run"),
            lambda row: timestamp(last[row[0]].started_at_ms if row[0] in last else None),
        ),
        Column(_("State"), lambda row: _last_state(last.get(row[0]))),
        Column(_("Next run"), lambda row: _next(following.get(row[0]))),
    ]
    if may(request, "admin"):
        columns.append(
            Column(_("Now"), lambda row: text(_("run"), page_url("job-run", row[0])))
        )
    return simple_table(columns, sorted(runs.known().items()), EmptyHint(_("No jobs")))


def _last_state(run: RunRow | None) -> Cell:
    return cells.state(run.state) if run else badge(_("never ran"))


def _next(at: datetime | None) -> Cell:
    return timestamp(round(at.timestamp() * 1000) if at else None)


class RunJob(Action):
    right = "admin"
    object_kind = "job"
    section = "jobs"
    button = lazy("Run now")
    title = lazy("Run %(name)s now")
    back_to = ("jobs",)

    def preview(self, fields: dict[str, Any]) -> Preview:
        job = runs.known().get(self.name)
        return Preview(effects=[_(job.text) if job else _("Unknown job")])

    def run(self, fields: dict[str, Any]) -> Text:
        runs.ask(name=self.name, actor=self.actor)
        return _("Job %s was queued; it runs as soon as a worker is free.") % self.name


class CancelRun(Action):
    right = "admin"
    object_kind = "job"
    section = "jobs"
    danger = True
    button = lazy("Cancel the run")
    needs_right_on_all = True
    title = lazy("Cancel run %(run)d")
    back_to = ("run", "run")
    effect = lazy(
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
        wanted=parse_list_query(request),
        actor=actor(request),
        name=name,
        who=who,
        since=since,
        until=until,
    )
    columns: Columns[AuditRow] = [
        Column(_("When"), lambda row: timestamp(row.at_ms), "at"),
        Column(_("Who"), lambda row: _who(request, row)),
        Column(_("Action"), lambda row: text(cells.audited_action(row.verb, row.kind))),
        Column(_("Target"), lambda row: cells.audited_object(row.kind, row.name), "name"),
        Column(_("Before"), lambda row: long(_values(row.before))),
        Column(_("After"), lambda row: long(_values(row.after))),
    ]
    hint = EmptyHint(_("No matching changes"))
    mine = (
        ""
        if may(request, "admin")
        else _("You see what was done to topics and groups that you manage.")
    )
    intro = _("Changes of %s") % name if name else mine
    filters = [Link(_("All changes"), page_url("audit"))] if name else []
    table = list_table(request, columns, found, empty=hint)
    place = {"section": "audit", **navigation.for_list(request, "audit", name=name)}
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
    chips = pages.filter_chips(request, labels)
    return pages.render_list(
        request,
        _("Audit log"),
        table,
        intro=intro,
        filters=filters,
        search_fields=asked,
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
    kind = cells.ACTOR_LABELS.get(one.actor_kind, one.actor_kind)
    return Cell(
        (f"{kind} {one.actor}", one.address),
        "who",
        url_with(request, who=one.actor, page=""),
    )


def _values(values: Mapping[str, Any] | None) -> str | None:
    if not values:
        return None
    shown = ", ".join(
        f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items()
    )
    return shown if len(shown) <= MAX_CHANGE_LENGTH else f"{shown[:MAX_CHANGE_LENGTH]} …"
