"""The installation's settings, and checks of the stored messages. For administrators."""

from __future__ import annotations

from dataclasses import fields as fields_of
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.functional import keep_lazy_text
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore import verify
from messagestore.verify import QueueReport, Since
from metadata.config import Config, config, setting_comments, variable_name
from metadata.db import access
from metadata.installation import name_programs
from metadata.rules.rights import Right
from portal.actions.action import Action, Preview
from portal.actions.pickers import Picker
from portal.auth.access import actor
from portal.kit import pages
from portal.kit.pages import Link, page_url
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    EmptyHint,
    Text,
    badge,
    code,
    number,
    simple_table,
    text,
)

MAX_QUEUES = 500


def settings(request: HttpRequest) -> HttpResponse:
    """Show every setting with its meaning, value and default. Secrets are not shown."""
    access.require(actor(request), Right.ADMIN, "*", what="setting")
    texts = setting_comments()
    columns: Columns[Any] = [
        Column(_("Setting"), lambda row: code(variable_name(row.name))),
        Column(_("Value"), _setting_value),
        Column(
            _("Default"),
            lambda row: code(_format_value(row.default)) if row.repr else text(None),
        ),
        Column(_("Meaning"), lambda row: text(_(texts[row.name]))),
    ]
    table = simple_table(columns, fields_of(Config), EmptyHint(""))
    intro = _(
        "They are read from the environment when a process starts. "
        "What is changed while it runs is on the pages of topics, groups and nodes."
    )
    return pages.render_list(
        request, _("Settings"), table, section="settings", intro=intro, searched=False
    )


def _setting_value(config_field: Any) -> Cell:
    # A changed value is marked, so that it stands out among the defaults.
    value = getattr(config, config_field.name)
    # Secrets are declared with repr=False.
    if not config_field.repr:
        return badge(_("set")) if value else badge(_("not set"))
    return Cell(
        _format_value(value), "code", tone="" if value == config_field.default else "warn"
    )


def _format_value(value: Any) -> str | None:
    """Return a value as its environment variable has it, None if that is empty."""
    return (", ".join(map(str, value)) if isinstance(value, tuple) else str(value)) or None


class CheckForm(forms.Form):
    topic = forms.CharField(
        label=lazy("Topic"),
        required=False,
        widget=Picker("topic"),
        help_text=lazy("Empty: all topics."),
    )
    minutes = forms.IntegerField(
        label=lazy("Sent within the last … minutes"), min_value=1, initial=60,
        help_text=keep_lazy_text(name_programs)(
            lazy("To check all messages, run manage.py verify.")  # type: ignore[arg-type]
        ),
    )  # fmt: skip


class Check(Action):
    """Checks stored messages for missing, double or misplaced rows. It changes nothing."""

    form_class = CheckForm
    right = Right.ADMIN
    object_kind = "check"
    section = "checks"
    button = lazy("Check again")
    preview_title = lazy("Result")
    title = lazy("Consistency checks")
    back_to = ("checks",)

    def extra_context(self) -> dict[str, Any]:
        return {
            "actions": [Link(_("Metadata and nodes"), page_url("consistency"))],
            "intro": _(
                "All rows, log end offsets, batches and committed offsets of the topic are read "
                "and compared. Nothing is changed."
            ),
        }

    def preview(self, fields: dict[str, Any]) -> Preview:
        topics = [fields["topic"]] if fields["topic"] else None
        # Only recent messages: a check of all would take longer than a browser waits.
        since = Since(ago_ms=fields["minutes"] * 60_000)
        report = verify.verify(topics=topics, since=since, actor=self.actor)
        columns: Columns[QueueReport] = [
            Column(_("Queue"), lambda row: code(row.id)),
            Column(_("Topic"), lambda row: text(row.expected.topic)),
            Column(_("Node"), lambda row: text(row.expected.node)),
            Column(
                _("Findings"),
                lambda row: number(len(row.findings), tone="bad" if row.findings else ""),
                right=True,
            ),
            Column(
                _("What"),
                lambda row: (
                    badge(", ".join(sorted({f.kind for f in row.findings})), "bad")
                    if row.findings
                    else badge(_("in order"), "ok")
                ),
            ),
        ]
        clean_text = _(
            "%d queues were checked: nothing is missing, double or out of order."
        ) % len(report.queues)
        template = name_programs(
            _("%d problems found. `manage.py verify` explains each one and its remedy.")
        )
        problem_text = template % len(report.findings)
        table = simple_table(
            columns, report.queues[:MAX_QUEUES], EmptyHint(_("There is no queue to check."))
        )
        return Preview(
            effects=[problem_text if report.findings else clean_text], table=table
        )

    # Confirming runs the check again, because it changes nothing.
    def run(self, fields: dict[str, Any]) -> Text:
        return self.preview(fields).effects[0]
