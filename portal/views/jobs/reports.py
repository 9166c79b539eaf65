"""Reports: made, listed, shown, downloaded."""

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
from metadata.jobs import pipeline, report_files, reports
from metadata.listing import operation_lists
from metadata.listing.operation_lists import ReportItem
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

MAX_ROWS = 500  # on a page; the download has all
QUEUE_COLUMN = "queue"  # column of reports: the id of a queue
REPORT_TITLES: dict[str, Text] = {
    "volume": lazy("Messages by topic, day and queue"),
    "size_and_expiry": lazy("What each queue holds, and when it expires"),
    "topics": lazy("Topics that nobody uses, or with too many or too few queues"),
    "capacity": lazy("How full the nodes are, and when they will be full"),
    "latency": lazy("How long messages wait until groups read them"),
    "departments": lazy("Topics, groups, messages and sizes by department"),
}


def reports_list(request: HttpRequest) -> HttpResponse:
    access.require(actor(request), "admin", "*", what="report")
    found = operation_lists.reports(wanted=parse_list_query(request), actor=actor(request))
    columns: list[Column[ReportItem]] = [
        Column(_("Created"), lambda row: timestamp(row.made_at_ms), "at"),
        Column(_("Report"), lambda row: code(row.name, page_url("report", row.id)), "name"),
        Column(_("Engine"), lambda row: text(row.engine)),
        Column(_("Requested"), lambda row: text(_asked(row.settings))),
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
        _("No matching reports"), "python manage.py report volume",
        page_url("report-make"), _("Create a report"),
    )  # fmt: skip
    table = list_table(request, columns, found, empty=hint)
    actions = [Link(_("Create a report"), page_url("report-make"))]
    return pages.render_list(
        request, _("Reports"), table, section="reports", actions=actions
    )


def _asked(settings: Any) -> str | None:
    return (
        ", ".join(
            f"{name}: {value}" for name, value in settings.items() if value is not None
        )
        or None
    )


def report(request: HttpRequest, number_: int) -> HttpResponse:
    """One report, with its first rows."""
    found = reports.shown(id=number_, actor=actor(request))
    columns = [_column(name, number=_is_number(found.rows, name)) for name in found.columns]
    facts = [
        Fact(_("Created"), found.made_at_ms, kind="when"),
        Fact(_("Engine"), found.engine),
        Fact(_("Requested"), _asked(found.settings)),
        Fact(_("Rows"), len(found.rows), kind="number"),
    ]
    return pages.render_page(
        request,
        "jobs/report",
        found.name,
        section="reports",
        intro=REPORT_TITLES.get(found.name, ""),
        actions=_downloads(number_),
        facts=facts,
        drawn=bars.draw_bars(found.name, found.rows),
        table=simple_table(columns, found.rows[:MAX_ROWS], EmptyHint(_("No rows"))),
        cut=len(found.rows) > MAX_ROWS,
    )


def _downloads(number_: int) -> list[Link]:
    """Return links to the files this server can make."""
    found = [Link(_("Download as CSV"), page_url("report-csv", number_))]
    if report_files.can_parquet():
        found.append(Link(_("Download as Parquet"), page_url("report-parquet", number_)))
    return found


def _is_number(rows: Sequence[Any], name: str) -> bool:
    first = next((row[name] for row in rows if row.get(name) is not None), None)
    return isinstance(first, int | float) and not isinstance(first, bool)


def _column(name: str, *, number: bool) -> Column[Mapping[str, Any]]:
    if name == QUEUE_COLUMN:  # by its name: numbers of tables are for files
        return Column(
            name,
            lambda row: (
                cells.queue(row[QUEUE_COLUMN]) if row.get(QUEUE_COLUMN) else text(None)
            ),
        )
    return Column(name, lambda row: _cell(row.get(name)), right=number)


def _cell(value: Any) -> Cell:
    return (
        number(value)
        if isinstance(value, int) and not isinstance(value, bool)
        else text(value)
    )


def report_csv(request: HttpRequest, number_: int) -> HttpResponse:
    found = reports.shown(id=number_, actor=actor(request))
    response = _file(found, "csv", "text/csv; charset=utf-8")
    written = csv.writer(response)
    written.writerow(found.columns)
    written.writerows(
        [without_formula(row.get(name)) for name in found.columns] for row in found.rows
    )
    return response


def report_parquet(request: HttpRequest, number_: int) -> HttpResponse:
    """A report as a Parquet file, with its types."""
    found = reports.shown(id=number_, actor=actor(request))
    response = _file(found, "parquet", "application/vnd.apache.parquet")
    written = BytesIO()
    report_files.parquet(found.rows, to=written)
    response.write(written.getvalue())
    return response


def _file(found: reports.ReportView, ending: str, content_type: str) -> HttpResponse:
    response = HttpResponse(content_type=content_type)
    response["Content-Disposition"] = (
        f'attachment; filename="{found.name}-{found.id}.{ending}"'
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
    """Makes a light report here and now, or has Spark make one."""

    form_class = ReportForm
    right = "admin"
    object_kind = "report"
    section = "reports"
    button = lazy("Create report")
    seen_at = ""
    needs_right_on_all = True
    title = lazy("Create a report")

    def back(self) -> str:
        """The report or the run that makes it; before, the list."""
        return self.seen_at or page_url("reports")

    def preview(self, fields: dict[str, Any]) -> Preview:
        if fields["engine"] == "direct":
            what = _(
                "The report will be created from the log end offsets and partitions of "
                "each queue: %s"
            )
            return Preview(effects=[what % REPORT_TITLES[fields["name"]]])
        if fields["topic"]:
            topic_rows.named(name=fields["topic"], actor=self.actor)
        what = _("A Spark job will read the messages and store the report: %s")
        blocked_by = pipeline.place(actor=self.actor).blocked_by
        return Preview(
            effects=[
                what % REPORT_TITLES[fields["name"]],
                *([blocked_by] if blocked_by else []),
            ]
        )

    def run(self, fields: dict[str, Any]) -> Text:
        asked = {"topic": fields["topic"] or None, "days": fields["days"]}
        if fields["engine"] == "spark":
            number_ = pipeline.ask(
                name=pipeline.REPORT + fields["name"], settings=asked, actor=self.actor
            )
            self.seen_at = page_url("run", number_)
            return _("Run %d was queued; it starts as soon as a worker is free.") % number_
        rows = light_reports.make(name=fields["name"], actor=self.actor, **asked)
        made = reports.keep(
            name=fields["name"],
            engine="direct",
            settings=asked,
            rows=rows,
            actor=self.actor,
        )
        self.seen_at = page_url("report", made)
        return _("Report %(name)s was created with %(rows)d rows.") % {
            "name": fields["name"],
            "rows": len(rows),
        }
