"""Pages of the data pipeline: the archive, Spark jobs to start, and a run with its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore.retention import archives
from messagestore.retention.archives import Stock
from metadata.errors import Conflict, Invalid
from metadata.installation import name_programs
from metadata.jobs import pipeline
from metadata.jobs.pipeline import RunView
from metadata.listing import operation_lists
from metadata.rules.jobs import JobState
from metadata.rules.rights import Right
from metadata.topics import topic_rows
from portal.actions.action import Action, Preview
from portal.actions.pickers import Picker
from portal.auth import error_texts
from portal.auth.access import actor
from portal.kit import cells, pages
from portal.kit.pages import Fact, Link, page_url
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    EmptyHint,
    Text,
    code,
    list_table,
    number,
    parse_list_query,
    simple_table,
    text,
)
from portal.views.jobs.operations import run_columns


def overview(request: HttpRequest) -> HttpResponse:
    """Show the pipeline's configuration, the archived topics, and the runs."""
    configuration = pipeline.job_place(actor=actor(request))
    runs_page = operation_lists.runs(
        query=parse_list_query(request), actor=actor(request), pipeline=True
    )
    hint = EmptyHint(_("No matching runs"))
    actions = [
        Link(_("Archive a topic"), page_url("archive-start")),
        Link(_("Purge a topic"), page_url("purge-start")),
        Link(_("Replay an archive"), page_url("replay-start")),
        Link(_("Create a report"), page_url("report-make") + "?engine=spark"),
    ]
    stock_columns: Columns[Stock] = [
        Column(_("Topic"), lambda row: code(row.topic)),
        Column(_("Days"), lambda row: number(row.days), right=True),
        Column(_("First day"), lambda row: text(row.first_day)),
        Column(_("Last day"), lambda row: text(row.last_day)),
        Column(_("Messages"), lambda row: number(row.rows), right=True),
        Column(_("Size"), lambda row: Cell(row.bytes, "size"), right=True),
    ]
    problem, stocks = "", []
    try:
        stocks = archives.stock(Path(configuration.archive))
    # A damaged archive must not hide the runs that may explain the damage.
    except Conflict as error:
        problem = error_texts.describe_error(error)
    return pages.render_page(
        request,
        "jobs/pipeline",
        _("Data pipeline"),
        section="pipeline",
        live=True,
        intro=_(
            "Spark jobs archive topics by day to Parquet files, replay archived days, and "
            "create reports."
        ),
        actions=actions,
        blocked_by=configuration.blocked_by or problem,
        facts=[
            Fact(_("Archive"), configuration.archive, kind="code"),
            Fact(_("Spark master"), configuration.master, kind="code"),
            Fact(_("Memory of each process"), configuration.memory, kind="code"),
        ],
        stock=simple_table(stock_columns, stocks, EmptyHint(_("Nothing is archived yet."))),
        table=list_table(request, run_columns(), runs_page, empty=hint),
        query=request.GET.get("q", ""),
    )


def run(request: HttpRequest, run: int) -> HttpResponse:
    """Show a run: its progress, its outcome and its log."""
    view = pipeline.find_run(id=run, actor=actor(request))
    cancel_actions = [Link(_("Cancel it"), page_url("run-cancel", view.id), "danger")]
    report_actions = (
        [Link(_("Open the report"), page_url("report", view.report))] if view.report else []
    )
    is_running = view.state == JobState.RUNNING
    parameters = ", ".join(
        f"{name}: {value}"
        for name, value in view.settings.items()
        if value not in (None, "", False)
    )
    state_badge = cells.state(view.state)
    return pages.render_page(
        request,
        "jobs/run",
        _("Run %(run)d of %(job)s") % {"run": view.id, "job": view.name},
        section="pipeline" if pipeline.is_pipeline_job(view.name) else "jobs",
        live=is_running,
        actions=[
            *report_actions,
            *(cancel_actions if is_running and not view.cancelling else []),
        ],
        facts=[
            Fact(_("State"), state_badge.value, tone=state_badge.tone, kind="badge"),
            Fact(_("Requested by"), view.asked_by or None),
            Fact(_("Parameters"), parameters or None),
            Fact(_("Started"), view.started_at_ms, kind="when"),
            Fact(
                _("Duration"),
                (view.finished_at_ms or view.now_ms) - view.started_at_ms,
                kind="lasting",
            ),
            Fact(_("Processed"), view.count, kind="number"),
            Fact(_("Working directory"), view.directory or None, kind="code"),
        ],
        run=view,
        note=_state_note(view),
    )


def _state_note(view: RunView) -> Text:
    """Return a note about a run that makes no progress, '' for others."""
    if view.waiting:
        return name_programs(
            _(
                "No worker has started it yet. Check that python manage.py qcluster is "
                "running."
            )
        )
    if view.silent:
        return _(
            "Its process does not report progress. If it has died, cancel the run and "
            "start it again."
        )
    return (
        _("Cancellation requested.")
        if view.cancelling and view.state == JobState.RUNNING
        else ""
    )


class DayField(forms.DateField):
    """A day in UTC. The job gets it as text."""

    widget = forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")


class StartRun(Action):
    """Base of actions that start a run of a job."""

    right = Right.ADMIN
    object_kind = "job"
    section = "pipeline"
    job = ""
    # Id of the started run, 0 before it was started.
    run_id = 0
    needs_right_on_all = True

    def back(self) -> str:
        return page_url("run", self.run_id) if self.run_id else page_url("pipeline")

    def settings(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the job's settings. Days become text."""
        return {
            name: f"{value:%Y-%m-%d}" if hasattr(value, "year") else value
            for name, value in fields.items()
        }

    def run(self, fields: dict[str, Any]) -> Text:
        # The redirect leads to this run.
        self.run_id = pipeline.request_run(
            name=self.job, settings=self.settings(fields), actor=self.actor
        )
        return _("Run %d was queued; it starts as soon as a worker is free.") % self.run_id

    def check_topic(self, name: str) -> None:
        """Raise NotFound if the topic does not exist."""
        topic_rows.find_topic(name=name, actor=self.actor)

    def find_archive(self, name: str) -> Stock:
        """Return the archived days of a topic. Raises Invalid if there are none, Conflict
        for a damaged archive.
        """
        archive = pipeline.job_place(actor=self.actor).archive
        # Purging and replaying read the archive, so it must have the topic.
        stocks = [stock for stock in archives.stock(Path(archive)) if stock.topic == name]
        if not stocks:
            raise Invalid.field(
                "topic",
                _("%(archive)s has no archived days of this topic.") % {"archive": archive},
            )
        return stocks[0]

    def spark_warnings(self) -> list[Text]:
        """Return what Spark lacks on this machine, as warnings."""
        blocked_by = pipeline.job_place(actor=self.actor).blocked_by
        return [blocked_by] if blocked_by else []


class ArchiveForm(forms.Form):
    topic = forms.CharField(label=lazy("Topic"), max_length=210, widget=Picker("topic"))
    through = DayField(
        label=lazy("Last day"),
        required=False,
        help_text=lazy("In UTC. Empty: the last complete day."),
    )
    up_to_now = forms.BooleanField(label=lazy("Include today"), required=False)
    rows_per_second = forms.IntegerField(
        label=lazy("Messages a second"), required=False, min_value=1, max_value=1_000_000_000,
        help_text=lazy("For each task that reads a node. Empty: no limit."),
    )  # fmt: skip
    # A remote master would get the accounts of nodes with the job, so only the server's
    # settings may choose it.
    master = forms.RegexField(
        regex=r"^local\[(\*|[1-9][0-9]{0,2})\]\Z", label=lazy("Spark master"), required=False,
        help_text=lazy("Empty: as configured. local[1] leaves CPU time to other processes."),
    )  # fmt: skip

    def clean(self) -> dict[str, Any]:
        fields: dict[str, Any] = super().clean() or self.cleaned_data
        # They contradict each other: today is later than any complete day.
        if fields.get("through") and fields.get("up_to_now"):
            raise forms.ValidationError(_("Choose either a last day or today."))
        return fields


class StartArchive(StartRun):
    form_class = ArchiveForm
    job = pipeline.ARCHIVE
    button = lazy("Archive it")
    title = lazy("Archive a topic")

    def preview(self, fields: dict[str, Any]) -> Preview:
        self.check_topic(fields["topic"])
        archive = pipeline.job_place(actor=self.actor).archive
        values = {"topic": fields["topic"], "archive": archive}
        sentence = _(
            "All days of %(topic)s that are not archived yet will be written to %(archive)s. "
            "Each day is read back, compared with the source, and only then published. No "
            "messages are deleted from the nodes."
        )
        return Preview(effects=[sentence % values, *self.spark_warnings()])


class PurgeForm(forms.Form):
    topic = forms.CharField(label=lazy("Topic"), max_length=210, widget=Picker("topic"))


class StartPurge(StartRun):
    form_class = PurgeForm
    job = pipeline.PURGE
    danger = True
    button = lazy("Purge it")
    title = lazy("Purge a topic")

    def preview(self, fields: dict[str, Any]) -> Preview:
        self.check_topic(fields["topic"])
        stock = self.find_archive(fields["topic"])
        values = {
            "topic": stock.topic,
            "first": stock.first_day,
            "last": stock.last_day,
            "rows": stock.rows,
        }
        sentence = _(
            "The archive has %(rows)d messages of %(topic)s, from %(first)s to %(last)s. Its "
            "files are checked. Then the archived messages are dropped from the nodes, except "
            "those that an active group has not read."
        )
        return Preview(effects=[sentence % values])


class ReplayForm(forms.Form):
    topic = forms.CharField(
        label=lazy("Archive of topic"), max_length=210, widget=Picker("topic")
    )
    to = forms.CharField(label=lazy("To topic"), max_length=210, widget=Picker("topic"))
    since = DayField(label=lazy("First day"), required=False)
    through = DayField(label=lazy("Last day"), required=False)
    messages_per_second = forms.IntegerField(
        label=lazy("Messages a second"), required=False, min_value=1, max_value=1_000_000_000,
        help_text=lazy("For the whole run. Empty: no limit."),
    )  # fmt: skip


class StartReplay(StartRun):
    form_class = ReplayForm
    job = pipeline.REPLAY
    button = lazy("Replay it")
    title = lazy("Replay an archive")

    def preview(self, fields: dict[str, Any]) -> Preview:
        stock = self.find_archive(fields["topic"])
        self.check_topic(fields["to"])
        values = {
            "topic": stock.topic,
            "to": fields["to"],
            "rows": stock.rows,
            "days": stock.days,
        }
        sentence = _(
            "The archive has %(rows)d messages of %(topic)s in %(days)d days. The days you "
            "chose are "
            "checked and sent to %(to)s, in the order of each queue; offsets and times are new."
        )
        return Preview(effects=[sentence % values, *self.spark_warnings()])
