"""The data pipeline: what the archive has, jobs of Spark that are asked for, and each run
with its log.
"""

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
from metadata.jobs import pipeline
from metadata.jobs.pipeline import RunView
from metadata.listing import operation_lists
from metadata.topics import topic_rows
from portal.actions.action import Action, Preview
from portal.actions.pickers import Picker
from portal.auth import error_words
from portal.auth.access import actor
from portal.kit import pages, rows
from portal.kit.pages import Fact, Link, to
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    Empty,
    Table,
    Text,
    code,
    listed,
    number,
    plain,
    text,
    wanted,
)
from portal.views.jobs.operations import run_columns


def overview(request: HttpRequest) -> HttpResponse:
    """Show where jobs work, what is archived, and the runs."""
    place = pipeline.job_place(actor=actor(request))
    found = operation_lists.runs(query=wanted(request), actor=actor(request), pipeline=True)
    hint = Empty(_("No matching runs"))
    actions = [
        Link(_("Archive a topic"), to("archive-start")),
        Link(_("Purge a topic"), to("purge-start")),
        Link(_("Replay an archive"), to("replay-start")),
        Link(_("Create a report"), to("report-make") + "?engine=spark"),
    ]
    stock, problem = _stock(place.archive)
    return pages.show(
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
        blocked_by=place.blocked_by or problem,
        facts=[
            Fact(_("Archive"), place.archive, kind="code"),
            Fact(_("Spark master"), place.master, kind="code"),
            Fact(_("Memory of each process"), place.memory, kind="code"),
        ],
        stock=stock,
        table=listed(request, run_columns(), found, empty=hint),
        query=request.GET.get("q", ""),
    )


def _stock(archive: str) -> tuple[Table, str]:
    """Return the archive's stock, and what is wrong with it."""
    columns: Columns[Stock] = [
        Column(_("Topic"), lambda one: code(one.topic)),
        Column(_("Days"), lambda one: number(one.days), right=True),
        Column(_("First day"), lambda one: text(one.first_day)),
        Column(_("Last day"), lambda one: text(one.last_day)),
        Column(_("Messages"), lambda one: number(one.rows), right=True),
        Column(_("Size"), lambda one: Cell(one.bytes, "size"), right=True),
    ]
    problem, found = "", []
    try:
        found = archives.stock(Path(archive))
    except Conflict as error:
        problem = error_words.said(error)
    return plain(columns, found, Empty(_("Nothing is archived yet."))), problem


def run(request: HttpRequest, run: int) -> HttpResponse:
    """A run: how far it is, how it ended, what came of it, its log."""
    found = pipeline.find_run(id=run, actor=actor(request))
    ends = [Link(_("Cancel it"), to("run-cancel", found.id), "danger")]
    made = [Link(_("Open the report"), to("report", found.report))] if found.report else []
    running = found.state == "running"
    return pages.show(
        request,
        "jobs/run",
        _("Run %(run)d of %(job)s") % {"run": found.id, "job": found.name},
        section="pipeline" if pipeline.is_pipeline_job(found.name) else "jobs",
        live=running,
        actions=[*made, *(ends if running and not found.cancelling else [])],
        facts=_facts(found),
        run=found,
        note=_note(found),
    )


def _facts(found: RunView) -> list[Fact]:
    asked = ", ".join(
        f"{name}: {value}"
        for name, value in found.settings.items()
        if value not in (None, "", False)
    )
    state = rows.state(found.state)
    return [
        Fact(_("State"), state.value, tone=state.tone, kind="badge"),
        Fact(_("Requested by"), found.asked_by or None),
        Fact(_("Parameters"), asked or None),
        Fact(_("Started"), found.started_at_ms, kind="when"),
        Fact(
            _("Duration"),
            (found.finished_at_ms or found.now_ms) - found.started_at_ms,
            kind="lasting",
        ),
        Fact(_("Processed"), found.count, kind="number"),
        Fact(_("Working directory"), found.directory or None, kind="code"),
    ]


def _note(found: RunView) -> Text:
    """Return a note on a run's state."""
    if found.waiting:
        return _(
            "No worker has started it yet. Check that python manage.py qcluster is running."
        )
    if found.silent:
        return _(
            "Its process does not report progress. If it has died, cancel the run and "
            "start it again."
        )
    return (
        _("Cancellation requested.")
        if found.cancelling and found.state == "running"
        else ""
    )


class Day(forms.DateField):
    """A day, in UTC; the job gets it as text."""

    widget = forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")


class Asking(Action):
    """Asks for a run of a job. Subclasses say which, and what it would do."""

    right = "admin"
    what = "job"
    section = "pipeline"
    job = ""
    asked = 0
    everywhere = True

    def back(self) -> str:
        return to("run", self.asked) if self.asked else to("pipeline")

    def settings(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The job's settings; days as text."""
        return {
            name: f"{one:%Y-%m-%d}" if hasattr(one, "year") else one
            for name, one in fields.items()
        }

    def run(self, fields: dict[str, Any]) -> Text:
        self.asked = pipeline.request_run(
            name=self.job, settings=self.settings(fields), actor=self.actor
        )
        return _("Run %d was queued; it starts as soon as a worker is free.") % self.asked

    def known_topic(self, name: str) -> None:
        """Raises NotFound."""
        topic_rows.find_topic(name=name, actor=self.actor)

    def archived_topic(self, name: str) -> Stock:
        """Return the archive's stock of a topic. Raises Invalid, Conflict."""
        archive = pipeline.job_place(actor=self.actor).archive
        found = [one for one in archives.stock(Path(archive)) if one.topic == name]
        if not found:
            raise Invalid.field(
                "topic",
                _("%(archive)s has no archived days of this topic.") % {"archive": archive},
            )
        return found[0]

    def hindered(self) -> list[Text]:
        """Return what Spark lacks on this machine, as a warning."""
        blocked_by = pipeline.job_place(actor=self.actor).blocked_by
        return [blocked_by] if blocked_by else []


class ArchiveFields(forms.Form):
    topic = forms.CharField(label=lazy("Topic"), max_length=210, widget=Picker("topic"))
    through = Day(
        label=lazy("Last day"),
        required=False,
        help_text=lazy("In UTC. Empty: the last complete day."),
    )
    up_to_now = forms.BooleanField(label=lazy("Include today"), required=False)
    rows_per_second = forms.IntegerField(
        label=lazy("Messages a second"), required=False, min_value=1, max_value=1_000_000_000,
        help_text=lazy("For each task that reads a node. Empty: no limit."),
    )  # fmt: skip
    # Any other master gets the accounts of nodes with the job: that choice is the server's
    # settings'.
    master = forms.RegexField(
        regex=r"^local\[(\*|[1-9][0-9]{0,2})\]\Z", label=lazy("Spark master"), required=False,
        help_text=lazy("Empty: as configured. local[1] leaves CPU time to other processes."),
    )  # fmt: skip

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = super().clean() or self.cleaned_data
        if found.get("through") and found.get("up_to_now"):
            raise forms.ValidationError(_("Choose either a last day or today."))
        return found


class StartArchive(Asking):
    form_class = ArchiveFields
    job = pipeline.ARCHIVE
    button = lazy("Archive it")
    title = lazy("Archive a topic")

    def preview(self, fields: dict[str, Any]) -> Preview:
        self.known_topic(fields["topic"])
        where = pipeline.job_place(actor=self.actor).archive
        words = {"topic": fields["topic"], "archive": where}
        says = _(
            "All days of %(topic)s that are not archived yet will be written to %(archive)s. "
            "Each day is read back, compared with the source, and only then published. No "
            "messages are deleted from the nodes."
        )
        return Preview(effects=[says % words, *self.hindered()])


class PurgeFields(forms.Form):
    topic = forms.CharField(label=lazy("Topic"), max_length=210, widget=Picker("topic"))


class StartPurge(Asking):
    form_class = PurgeFields
    job = pipeline.PURGE
    danger = True
    button = lazy("Purge it")
    title = lazy("Purge a topic")

    def preview(self, fields: dict[str, Any]) -> Preview:
        self.known_topic(fields["topic"])
        found = self.archived_topic(fields["topic"])
        words = {
            "topic": found.topic,
            "first": found.first_day,
            "last": found.last_day,
            "rows": found.rows,
        }
        says = _(
            "The archive has %(rows)d messages of %(topic)s, from %(first)s to %(last)s. Its "
            "files are checked. Then the archived messages are dropped from the nodes, except "
            "those that an active group has not read."
        )
        return Preview(effects=[says % words])


class ReplayFields(forms.Form):
    topic = forms.CharField(
        label=lazy("Archive of topic"), max_length=210, widget=Picker("topic")
    )
    to = forms.CharField(label=lazy("To topic"), max_length=210, widget=Picker("topic"))
    since = Day(label=lazy("First day"), required=False)
    through = Day(label=lazy("Last day"), required=False)
    messages_per_second = forms.IntegerField(
        label=lazy("Messages a second"), required=False, min_value=1, max_value=1_000_000_000,
        help_text=lazy("For the whole run. Empty: no limit."),
    )  # fmt: skip


class StartReplay(Asking):
    form_class = ReplayFields
    job = pipeline.REPLAY
    button = lazy("Replay it")
    title = lazy("Replay an archive")

    def preview(self, fields: dict[str, Any]) -> Preview:
        found = self.archived_topic(fields["topic"])
        self.known_topic(fields["to"])
        words = {
            "topic": found.topic,
            "to": fields["to"],
            "rows": found.rows,
            "days": found.days,
        }
        says = _(
            "The archive has %(rows)d messages of %(topic)s in %(days)d days. The days you "
            "chose are "
            "checked and sent to %(to)s, in the order of each queue; offsets and times are new."
        )
        return Preview(effects=[says % words, *self.hindered()])
