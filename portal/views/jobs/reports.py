"""Reports: create, list, show, download."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore.inspect import light_reports
from metadata.db import access
from metadata.installation import name_programs
from metadata.jobs import pipeline, report_files, reports
from metadata.listing import operation_lists
from metadata.listing.operation_lists import ReportItem
from metadata.rules.rights import Right
from metadata.topics import topic_rows
from portal.actions.action import Action, Preview
from portal.actions.pickers import Picker
from portal.auth.access import actor
from portal.kit import bars, cells, pages
from portal.kit.pages import Fact, Link, page_url
from portal.kit.tables import (
    Cell,
    Column,
    EmptyHint,
    Text,
    code,
    list_table,
    number,
    parse_list_query,
    simple_table,
    text,
    timestamp,
    without_formula,
)

# Rows on a page. The download has all.
MAX_ROWS = 500
# The column of reports that holds the id of a queue.
QUEUE_COLUMN = "queue"
REPORT_TITLES: dict[str, Text] = {
    "volume": lazy("Messages by topic, day and queue"),
    "size_and_expiry": lazy("What each queue holds, and when it expires"),
    "topics": lazy("Topics that nobody uses, or with too many or too few queues"),
    "capacity": lazy("How full the nodes are, and when they will be full"),
    "latency": lazy("How long messages wait until groups read them"),
    "departments": lazy("Topics, groups, messages and sizes by department"),
}


def reports_list(request: HttpRequest) -> HttpResponse:
    access.require(actor(request), Right.ADMIN, "*", what="report")
    report_page = operation_lists.reports(
        query=parse_list_query(request), actor=actor(request)
    )
    columns: list[Column[ReportItem]] = [
        Column(_("Created"), lambda row: timestamp(row.made_at_ms), "at"),
        Column(_("Report"), lambda row: code(row.name, page_url("report", row.id)), "name"),
        Column(_("Engine"), lambda row: text(row.engine)),
        Column(_("Requested"), lambda row: text(_format_settings(row.settings))),
        Column(_("Download"), lambda row: text("CSV", page_url("report-csv", row.id))),
    ]
    if report_files.can_parquet():
        columns.append(
            Column(
                _("Download"),
                lambda row: text("Parquet", page_url("report-parquet", row.id)),
            )
        )
    hint = EmptyHint(
        _("No matching reports"), name_programs("python manage.py report volume"),
        page_url("report-make"), _("Create a report"),
    )  # fmt: skip
    table = list_table(request, columns, report_page, empty=hint)
    actions = [Link(_("Create a report"), page_url("report-make"))]
    return pages.render_list(
        request, _("Reports"), table, section="reports", actions=actions
    )


def _format_settings(settings: Any) -> str | None:
    return (
        ", ".join(
            f"{name}: {value}" for name, value in settings.items() if value is not None
        )
        or None
    )


def report(request: HttpRequest, number_: int) -> HttpResponse:
    """Show a report with its first rows."""
    view = reports.find_report(id=number_, actor=actor(request))
    columns = [_report_column(name, view.rows) for name in view.columns]
    facts = [
        Fact(_("Created"), view.made_at_ms, kind="when"),
        Fact(_("Engine"), view.engine),
        Fact(_("Requested"), _format_settings(view.settings)),
        Fact(_("Rows"), len(view.rows), kind="number"),
    ]
    links = [Link(_("Download as CSV"), page_url("report-csv", number_))]
    if report_files.can_parquet():
        links.append(Link(_("Download as Parquet"), page_url("report-parquet", number_)))
    return pages.render_page(
        request,
        "jobs/report",
        view.name,
        section="reports",
        intro=REPORT_TITLES.get(view.name, ""),
        actions=links,
        facts=facts,
        drawn=bars.draw_bars(view.name, view.rows),
        table=simple_table(columns, view.rows[:MAX_ROWS], EmptyHint(_("No rows"))),
        cut=len(view.rows) > MAX_ROWS,
    )


def _report_column(name: str, rows: Sequence[Any]) -> Column[Mapping[str, Any]]:
    # Pages show names of queues. Their ids are for downloads.
    if name == QUEUE_COLUMN:
        return Column(
            name,
            lambda row: (
                cells.queue(row[QUEUE_COLUMN]) if row.get(QUEUE_COLUMN) else text(None)
            ),
        )
    # The first value decides on the alignment, because a column has a single type.
    first = next((row[name] for row in rows if row.get(name) is not None), None)
    is_number = isinstance(first, int | float) and not isinstance(first, bool)
    return Column(name, lambda row: _value_cell(row.get(name)), right=is_number)


def _value_cell(value: Any) -> Cell:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return number(value) if is_integer else text(value)


def report_csv(request: HttpRequest, number_: int) -> HttpResponse:
    """Return a report as a CSV file."""
    view = reports.find_report(id=number_, actor=actor(request))
    response = _file_response(view, "csv", "text/csv; charset=utf-8")
    writer = csv.writer(response)
    writer.writerow(view.columns)
    writer.writerows(
        [without_formula(row.get(name)) for name in view.columns] for row in view.rows
    )
    return response


def report_parquet(request: HttpRequest, number_: int) -> HttpResponse:
    """Return a report as a Parquet file, with typed columns."""
    view = reports.find_report(id=number_, actor=actor(request))
    response = _file_response(view, "parquet", "application/vnd.apache.parquet")
    # The writer needs a file that it can seek in.
    buffer = BytesIO()
    report_files.write_parquet(view.rows, to=buffer)
    response.write(buffer.getvalue())
    return response


def _file_response(
    view: reports.ReportView, ending: str, content_type: str
) -> HttpResponse:
    response = HttpResponse(content_type=content_type)
    response["Content-Disposition"] = (
        f'attachment; filename="{view.name}-{view.id}.{ending}"'
    )
    return response


ENGINES: dict[str, Text] = {
    "direct": lazy("Log end offsets and partitions (takes moments)"),
    "spark": lazy(
        "Spark scan of all messages: adds exact bytes, keys, skew and waiting times"
    ),
}


class ReportForm(forms.Form):
    name = forms.ChoiceField(label=lazy("Report"), choices=tuple(REPORT_TITLES.items()))
    engine = forms.ChoiceField(label=lazy("Data source"), choices=tuple(ENGINES.items()))
    topic = forms.CharField(
        label=lazy("Topic"),
        required=False,
        max_length=210,
        widget=Picker("topic"),
        help_text=lazy("Empty: all topics."),
    )
    days = forms.IntegerField(
        label=lazy("Days back"), min_value=1, max_value=400, initial=7
    )


class MakeReport(Action):
    """Creates a light report at once, or starts a Spark job that creates a report."""

    form_class = ReportForm
    right = Right.ADMIN
    object_kind = "report"
    section = "reports"
    button = lazy("Create report")
    # URL of the report, or of the run that creates it.
    result_url = ""
    needs_right_on_all = True
    title = lazy("Create a report")

    def back(self) -> str:
        """Return the URL of the report or its run, before it exists the URL of the list."""
        return self.result_url or page_url("reports")

    def preview(self, fields: dict[str, Any]) -> Preview:
        if fields["engine"] == "direct":
            sentence = _(
                "The report will be created from the log end offsets and partitions of "
                "each queue: %s"
            )
            return Preview(effects=[sentence % REPORT_TITLES[fields["name"]]])
        if fields["topic"]:
            topic_rows.find_topic(name=fields["topic"], actor=self.actor)
        sentence = _("A Spark job will read the messages and store the report: %s")
        blocked_by = pipeline.job_place(actor=self.actor).blocked_by
        return Preview(
            effects=[
                sentence % REPORT_TITLES[fields["name"]],
                *([blocked_by] if blocked_by else []),
            ]
        )

    def run(self, fields: dict[str, Any]) -> Text:
        settings = {"topic": fields["topic"] or None, "days": fields["days"]}
        if fields["engine"] == "spark":
            run_id = pipeline.request_run(
                name=pipeline.REPORT + fields["name"], settings=settings, actor=self.actor
            )
            self.result_url = page_url("run", run_id)
            return _("Run %d was queued; it starts as soon as a worker is free.") % run_id
        rows = light_reports.make_report(name=fields["name"], actor=self.actor, **settings)
        report_id = reports.save_report(
            name=fields["name"],
            engine="direct",
            settings=settings,
            rows=rows,
            actor=self.actor,
        )
        self.result_url = page_url("report", report_id)
        return _("Report %(name)s was created with %(rows)d rows.") % {
            "name": fields["name"],
            "rows": len(rows),
        }
