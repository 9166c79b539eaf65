"""Pages of jobs and of the audit log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import date
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy
from django_q.models import Schedule

from metadata.installation import name_programs
from metadata.jobs import runs
from metadata.listing import operation_lists
from metadata.listing.operation_lists import AuditRow, RunRow
from metadata.rules.jobs import JobState
from metadata.rules.rights import Right
from portal.actions.action import Action, Preview
from portal.auth.access import actor, may
from portal.kit import cells, navigation, pages
from portal.kit.pages import Link, page_url
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    EmptyHint,
    Text,
    badge,
    code,
    duration,
    folded,
    list_table,
    long,
    number,
    parse_list_query,
    phrase,
    simple_table,
    text,
    timestamp,
    url_with,
)

# Characters of the detail of a run.
MAX_DETAIL_LENGTH = 300
# Characters of a change that a row shows. Longer ones are folded.
MAX_LINE_LENGTH = 110
CHANGE_SEPARATOR = " \N{MIDDLE DOT} "
ARROW = " \N{RIGHTWARDS ARROW} "


def jobs(request: HttpRequest) -> HttpResponse:
    """Show the schedules with their last runs, and all runs."""
    runs_page = operation_lists.runs(query=parse_list_query(request), actor=actor(request))
    is_admin = may(request, Right.ADMIN)
    columns = run_columns(has_links=is_admin)
    if is_admin:
        columns.append(
            Column(
                _("Cancel"),
                lambda row: (
                    text(_("cancel requested"))
                    if row.cancelling
                    else text(_("cancel"), page_url("run-cancel", row.id))
                    if row.state == JobState.RUNNING
                    else text(None)
                ),
            )
        )
    hint = EmptyHint(
        _("No matching runs. Check that a worker is running."),
        name_programs("python manage.py qcluster"),
    )
    # A single query for all jobs.
    last_runs = operation_lists.last_runs(actor=actor(request))
    next_runs = {
        name: round(next_run.timestamp() * 1000) if next_run else None
        for name, next_run in Schedule.objects.values_list("name", "next_run")
    }
    schedule_columns: list[Column[tuple[str, runs.ScheduledJob]]] = [
        Column(_("Job"), lambda row: code(row[0], f"{page_url('jobs')}?q={row[0]}")),
        Column(_("What it does"), lambda row: text(_(row[1].text))),
        Column(_("Every"), lambda row: duration(row[1].every_minutes * 60_000)),
        Column(
            _("Last run"),
            lambda row: timestamp(
                last_runs[row[0]].started_at_ms if row[0] in last_runs else None
            ),
        ),
        Column(
            _("State"),
            lambda row: (
                cells.state(last_runs[row[0]].state)
                if row[0] in last_runs
                else badge(_("never ran"))
            ),
        ),
        Column(
            _("Next run"),
            lambda row: timestamp(next_runs.get(row[0])),
        ),
    ]
    if is_admin:
        schedule_columns.append(
            Column(_("Now"), lambda row: text(_("run"), page_url("job-run", row[0])))
        )
    holders = operation_lists.lease_holders(actor=actor(request))
    # Loops run inside the brokers. Of those with a lease, a single process makes the passes.
    loop_columns: list[Column[runs.BrokerLoop]] = [
        Column(_("Loop"), lambda row: code(row.name)),
        Column(_("What it does"), lambda row: text(_(row.purpose))),
        Column(
            _("Every"),
            lambda row: (
                duration(round(row.every_s * 1000))
                if row.every_s
                else text(_("until an event"))
            ),
        ),
        Column(
            _("Runs in"),
            lambda row: text(
                _("one process of all brokers")
                if row.lease
                else _("every broker process, once for each node")
                if row.per_node
                else _("every broker process")
            ),
        ),
        Column(_("Lease held by"), lambda row: text(holders.get(row.lease))),
    ]
    return pages.render_page(
        request,
        "jobs/jobs",
        _("Jobs"),
        section="jobs",
        live=True,
        schedules=simple_table(
            schedule_columns, sorted(runs.scheduled_jobs().items()), EmptyHint(_("No jobs"))
        ),
        loops=simple_table(
            loop_columns, list(runs.broker_loops()), EmptyHint(_("No loops"))
        ),
        table=list_table(request, columns, runs_page, empty=hint),
        query=request.GET.get("q", ""),
    )


def run_columns(*, has_links: bool = True) -> list[Column[RunRow]]:
    """Return the columns of a list of runs. With `has_links`, runs link to their own pages."""
    return [
        Column(_("Started"), lambda row: timestamp(row.started_at_ms), "at"),
        Column(
            _("Job"),
            lambda row: code(row.name, page_url("run", row.id) if has_links else ""),
            "name",
        ),
        Column(
            _("State"),
            lambda row: (
                badge(_("not responding"), "warn") if row.silent else cells.state(row.state)
            ),
        ),
        Column(_("Duration"), lambda row: duration(row.took_ms), right=True),
        Column(_("Processed"), lambda row: number(row.count), right=True),
        Column(
            _("Detail"), lambda row: long(_describe_run(row)[:MAX_DETAIL_LENGTH] or None)
        ),
    ]


def _describe_run(run: RunRow) -> str:
    """Return a run's result, or its progress while it runs."""
    if run.state != JobState.RUNNING or not run.stage:
        return run.detail
    if not run.total:
        return run.stage
    progress = {"stage": run.stage, "done": run.done, "total": run.total}
    return str(_("%(stage)s: %(done)d of %(total)d") % progress)


class RunJob(Action):
    right = Right.ADMIN
    object_kind = "job"
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
    right = Right.ADMIN
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
    """Show the audit log, filtered by name, actor and days."""
    # Longer texts match nothing, and NUL is refused by some databases.
    name, actor_name = (
        request.GET.get(parameter, "").replace("\0", "")[:500]
        for parameter in ("name", "who")
    )
    since, until = (
        _parse_day(request.GET.get(parameter, "")) for parameter in ("since", "until")
    )
    changes = operation_lists.audit(
        query=parse_list_query(request),
        actor=actor(request),
        name=name,
        who=actor_name,
        since=since,
        until=until,
    )
    columns: Columns[AuditRow] = [
        Column(_("When"), lambda row: timestamp(row.at_ms), "at"),
        Column(
            _("Who"),
            lambda row: Cell(
                (
                    row.actor,
                    " · ".join(filter(None, (_actor_kind(row), row.address))),
                ),
                "who",
                # All changes by this actor.
                url_with(request, who=row.actor, page=""),
            ),
        ),
        Column(_("Action"), lambda row: phrase(cells.audited_action(row.verb, row.kind))),
        Column(_("Target"), lambda row: cells.audited_object(row.kind, row.name), "name"),
        Column(_("Change"), _change_cell),
    ]
    hint = EmptyHint(_("No matching changes"))
    # The list is filtered by rights, which the page must not hide.
    scope = (
        ""
        if may(request, Right.ADMIN)
        else _("You see what was done to topics and groups that you manage.")
    )
    intro = _("Changes of %s") % name if name else scope
    filters = [Link(_("All changes"), page_url("audit"))] if name else []
    table = list_table(request, columns, changes, empty=hint)
    navigation_context = {
        "section": "audit",
        **navigation.for_list(request, "audit", name=name),
    }
    labels = {"who": _("Who"), "since": _("From"), "until": _("To")}
    search_fields = [
        {
            "name": parameter,
            "label": labels[parameter],
            "type": "text" if parameter == "who" else "date",
            "value": value or "",
        }
        for parameter, value in (
            ("who", actor_name),
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
        search_fields=search_fields,
        chips=chips,
        **navigation_context,
    )


def _parse_day(day: str) -> date | None:
    """Return the day of a filter, None for an invalid day."""
    with suppress(ValueError):
        return date.fromisoformat(day)
    return None


def _actor_kind(row: AuditRow) -> str:
    return str(cells.ACTOR_LABELS.get(row.actor_kind, row.actor_kind))


def _change_cell(row: AuditRow) -> Cell:
    """Return the changed values. A long list is folded behind its first line."""
    before, after = row.before or {}, row.after or {}
    changes = [
        (key, _format_value(before, key), _format_value(after, key))
        for key in {**before, **after}
    ]
    if not changes:
        return text(None)
    line = CHANGE_SEPARATOR.join(
        f"{key}: {ARROW.join(filter(None, (old, new)))}" for key, old, new in changes
    )
    if len(line) > MAX_LINE_LENGTH:
        # A line for each value is readable at any length.
        return folded(line, line.replace(CHANGE_SEPARATOR, "\n"), f"audit-{row.id}")
    return Cell(changes, "changes")


def _format_value(values: Mapping[str, Any], key: str) -> str:
    """Return a value as JSON, '' if it was not there."""
    return json.dumps(values[key], ensure_ascii=False) if key in values else ""
