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
from portal.kit import bars, pages, rows
from portal.kit.pages import Fact, Link, to
from portal.kit.tables import (
    Cell,
    Column,
    Empty,
    Text,
    code,
    harmless,
    listed,
    number,
    plain,
    text,
    wanted,
    when,
)

MOST_ROWS = 500  # on a page; the download has all
QUEUE = "queue"  # column of reports: the id of a queue
MEANING: dict[str, Text] = {
    "volume": lazy("Messages by topic, day and queue"),
    "size_and_expiry": lazy("What each queue holds, and when it expires"),
    "topics": lazy("Topics that nobody uses, or with too many or too few queues"),
    "capacity": lazy("How full the nodes are, and when they will be full"),
    "latency": lazy("How long messages wait until groups read them"),
    "departments": lazy("Topics, groups, messages and sizes by department"),
}


def reports_list(request: HttpRequest) -> HttpResponse:
    access.require(actor(request), "admin", "*", what="report")
    found = operation_lists.reports(query=wanted(request), actor=actor(request))
    columns: list[Column[ReportItem]] = [
        Column(_("Created"), lambda one: when(one.made_at_ms), "at"),
        Column(_("Report"), lambda one: code(one.name, to("report", one.id)), "name"),
        Column(_("Engine"), lambda one: text(one.engine)),
        Column(_("Requested"), lambda one: text(_asked(one.settings))),
        Column(_("Download"), lambda one: text("CSV", to("report-csv", one.id))),
    ]
    if report_files.can_parquet():
        columns.append(
            Column(_("Download"), lambda one: text("Parquet", to("report-parquet", one.id)))
        )
    hint = Empty(
        _("No matching reports"), "python manage.py report volume",
        to("report-make"), _("Create a report"),
    )  # fmt: skip
    table = listed(request, columns, found, empty=hint)
    actions = [Link(_("Create a report"), to("report-make"))]
    return pages.list_page(request, _("Reports"), table, section="reports", actions=actions)


def _asked(settings: Any) -> str | None:
    return (
        ", ".join(
            f"{name}: {value}" for name, value in settings.items() if value is not None
        )
        or None
    )


def report(request: HttpRequest, number_: int) -> HttpResponse:
    """One report, with its first rows."""
    found = reports.find_report(id=number_, actor=actor(request))
    columns = [_column(name, number=_is_number(found.rows, name)) for name in found.columns]
    facts = [
        Fact(_("Created"), found.made_at_ms, kind="when"),
        Fact(_("Engine"), found.engine),
        Fact(_("Requested"), _asked(found.settings)),
        Fact(_("Rows"), len(found.rows), kind="number"),
    ]
    return pages.show(
        request,
        "jobs/report",
        found.name,
        section="reports",
        intro=MEANING.get(found.name, ""),
        actions=_downloads(number_),
        facts=facts,
        drawn=bars.drawn(found.name, found.rows),
        table=plain(columns, found.rows[:MOST_ROWS], Empty(_("No rows"))),
        cut=len(found.rows) > MOST_ROWS,
    )


def _downloads(number_: int) -> list[Link]:
    """Return links to the files this server can make."""
    found = [Link(_("Download as CSV"), to("report-csv", number_))]
    if report_files.can_parquet():
        found.append(Link(_("Download as Parquet"), to("report-parquet", number_)))
    return found


def _is_number(rows: Sequence[Any], name: str) -> bool:
    first = next((row[name] for row in rows if row.get(name) is not None), None)
    return isinstance(first, int | float) and not isinstance(first, bool)


def _column(name: str, *, number: bool) -> Column[Mapping[str, Any]]:
    if name == QUEUE:  # by its name: numbers of tables are for files
        return Column(
            name, lambda row: rows.queue(row[QUEUE]) if row.get(QUEUE) else text(None)
        )
    return Column(name, lambda row: _cell(row.get(name)), right=number)


def _cell(value: Any) -> Cell:
    return (
        number(value)
        if isinstance(value, int) and not isinstance(value, bool)
        else text(value)
    )


def report_csv(request: HttpRequest, number_: int) -> HttpResponse:
    found = reports.find_report(id=number_, actor=actor(request))
    response = _file(found, "csv", "text/csv; charset=utf-8")
    written = csv.writer(response)
    written.writerow(found.columns)
    written.writerows(
        [harmless(row.get(name)) for name in found.columns] for row in found.rows
    )
    return response


def report_parquet(request: HttpRequest, number_: int) -> HttpResponse:
    """A report as a Parquet file, with its types."""
    found = reports.find_report(id=number_, actor=actor(request))
    response = _file(found, "parquet", "application/vnd.apache.parquet")
    written = BytesIO()
    report_files.write_parquet(found.rows, to=written)
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


class Making(forms.Form):
    name = forms.ChoiceField(label=lazy("Report"), choices=tuple(MEANING.items()))
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

    form_class = Making
    right = "admin"
    what = "report"
    section = "reports"
    button = lazy("Create report")
    seen_at = ""
    everywhere = True
    title = lazy("Create a report")

    def back(self) -> str:
        """The report or the run that makes it; before, the list."""
        return self.seen_at or to("reports")

    def preview(self, fields: dict[str, Any]) -> Preview:
        if fields["engine"] == "direct":
            what = _(
                "The report will be created from the log end offsets and partitions of "
                "each queue: %s"
            )
            return Preview(effects=[what % MEANING[fields["name"]]])
        if fields["topic"]:
            topic_rows.find_topic(name=fields["topic"], actor=self.actor)
        what = _("A Spark job will read the messages and store the report: %s")
        blocked_by = pipeline.job_place(actor=self.actor).blocked_by
        return Preview(
            effects=[what % MEANING[fields["name"]], *([blocked_by] if blocked_by else [])]
        )

    def run(self, fields: dict[str, Any]) -> Text:
        asked = {"topic": fields["topic"] or None, "days": fields["days"]}
        if fields["engine"] == "spark":
            number_ = pipeline.request_run(
                name=pipeline.REPORT + fields["name"], settings=asked, actor=self.actor
            )
            self.seen_at = to("run", number_)
            return _("Run %d was queued; it starts as soon as a worker is free.") % number_
        rows = light_reports.make_report(name=fields["name"], actor=self.actor, **asked)
        made = reports.save_report(
            name=fields["name"],
            engine="direct",
            settings=asked,
            rows=rows,
            actor=self.actor,
        )
        self.seen_at = to("report", made)
        return _("Report %(name)s was created with %(rows)d rows.") % {
            "name": fields["name"],
            "rows": len(rows),
        }
