"""The installation itself: its settings, and checks of what it holds. For administrators."""

from __future__ import annotations

from dataclasses import fields as fields_of
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore import verify
from messagestore.verify import QueueReport, Since
from metadata.config import Config, config, setting_comments, variable_name
from metadata.db import access
from portal.actions.action import Action, Preview
from portal.actions.pickers import Picker
from portal.auth.access import actor
from portal.kit import pages
from portal.kit.pages import Link, to
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    Empty,
    Text,
    badge,
    code,
    number,
    plain,
    text,
)

MOST_QUEUES = 500


def settings(request: HttpRequest) -> HttpResponse:
    """Every setting with meaning, value and default; secrets are not shown."""
    access.require(actor(request), "admin", "*", what="setting")
    said = setting_comments()
    columns: Columns[Any] = [
        Column(_("Setting"), lambda one: code(variable_name(one.name))),
        Column(_("Value"), _value),
        Column(
            _("Default"), lambda one: code(_word(one.default)) if one.repr else text(None)
        ),
        Column(_("Meaning"), lambda one: text(_(said[one.name]))),
    ]
    table = plain(columns, fields_of(Config), Empty(""))
    intro = _(
        "They are read from the environment when a process starts. "
        "What is changed while it runs is on the pages of topics, groups and nodes."
    )
    return pages.list_page(
        request, _("Settings"), table, section="settings", intro=intro, searched=False
    )


def _value(one: Any) -> Cell:
    value = getattr(config, one.name)
    if not one.repr:  # secrets
        return badge(_("set")) if value else badge(_("not set"))
    return Cell(_word(value), "code", tone="" if value == one.default else "warn")


def _word(value: Any) -> str | None:
    """Return a value as its variable has it; None where that is empty."""
    return (", ".join(map(str, value)) if isinstance(value, tuple) else str(value)) or None


class Checking(forms.Form):
    topic = forms.CharField(
        label=lazy("Topic"),
        required=False,
        widget=Picker("topic"),
        help_text=lazy("Empty: all topics."),
    )
    minutes = forms.IntegerField(
        label=lazy("Sent within the last … minutes"), min_value=1, initial=60,
        help_text=lazy("To check all messages, run manage.py verify."),
    )  # fmt: skip


class Check(Action):
    """Looks through what is stored for anything missing, double or out of order. It changes
    nothing.
    """

    form_class = Checking
    right = "admin"
    what = "check"
    section = "checks"
    button = lazy("Check again")
    says = lazy("Result")
    title = lazy("Consistency checks")
    back_to = ("checks",)

    def words(self) -> dict[str, Any]:
        return {
            "actions": [Link(_("Metadata and nodes"), to("consistency"))],
            "intro": _(
                "All rows, log end offsets, batches and committed offsets of the topic are read "
                "and compared. Nothing is changed."
            ),
        }

    def preview(self, fields: dict[str, Any]) -> Preview:
        topics = [fields["topic"]] if fields["topic"] else None
        since = Since(ago_ms=fields["minutes"] * 60_000)
        report = verify.verify(topics=topics, since=since, actor=self.actor)
        columns: Columns[QueueReport] = [
            Column(_("Queue"), lambda one: code(one.id)),
            Column(_("Topic"), lambda one: text(one.expected.topic)),
            Column(_("Node"), lambda one: text(one.expected.node)),
            Column(
                _("Findings"),
                lambda one: number(len(one.findings), tone="bad" if one.findings else ""),
                right=True,
            ),
            Column(_("What"), _kinds),
        ]
        good = _(
            "%d queues were checked: nothing is missing, double or out of order."
        ) % len(report.queues)
        said = _("%d problems found. `manage.py verify` explains each one and its remedy.")
        bad = said % len(report.findings)
        table = plain(
            columns, report.queues[:MOST_QUEUES], Empty(_("There is no queue to check."))
        )
        return Preview(effects=[bad if report.findings else good], table=table)

    def run(self, fields: dict[str, Any]) -> Text:
        return self.preview(fields).effects[0]


def _kinds(one: QueueReport) -> Cell:
    kinds = ", ".join(sorted({finding.kind for finding in one.findings}))
    return badge(kinds, "bad") if kinds else badge(_("in order"), "ok")
