"""The installation itself: its settings, and checks of what it holds. For administrators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields as fields_of
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore import verify
from messagestore.verify import QueueReport, Since
from metadata.config import Config, config, meanings, variable_of
from metadata.db import access
from portal.actions.action import Action, Preview
from portal.auth.access import actor
from portal.kit import pages
from portal.kit.pages import Link, to
from portal.kit.tables import Cell, Column, Empty, Text, badge, code, number, plain, text

MOST_QUEUES = 500


def settings(request: HttpRequest) -> HttpResponse:
    """Every setting with meaning, value and default; secrets are not shown."""
    access.require(actor(request), "admin", "*", what="setting")
    columns = (Column(_("Setting")), Column(_("Value")), Column(_("Default")), Column(_("Meaning")))
    said = meanings()
    table = plain(columns, [_setting(one, said.get(one.name, "")) for one in fields_of(Config)], Empty(""))
    intro = _(
        "They are read from the environment when a process starts. "
        "What is changed while it runs is on the pages of topics, groups and nodes."
    )
    return pages.list_page(request, _("Settings"), table, section="settings", intro=intro, searched=False)


def _setting(one: Any, meaning: str) -> Sequence[Cell]:
    value, default = getattr(config, one.name), one.default
    if not one.repr:  # secrets
        shown: Cell = badge(_("set")) if value else badge(_("not set"))
        return (code(variable_of(one.name)), shown, text(None), text(meaning))
    tone = "" if value == default else "warn"
    return (
        code(variable_of(one.name)),
        Cell(_word(value), "code", tone=tone),
        code(_word(default)),
        text(meaning),
    )


def _word(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


class Checking(forms.Form):
    """Scope of a check."""

    topic = forms.CharField(label=lazy("Topic"), required=False, help_text=lazy("Empty: all topics."))
    minutes = forms.IntegerField(
        label=lazy("Of the last minutes"), min_value=1, initial=60,
        help_text=lazy("All of it: manage.py verify."),
    )  # fmt: skip


class Check(Action):
    """Looks through what is stored for anything missing, double or out of order. It changes nothing."""

    form_class = Checking
    right = "admin"
    what = "check"
    section = "checks"
    button = lazy("Check again")
    says = lazy("What was found")

    def heading(self) -> Text:
        """The page's title."""
        return _("Consistency checks")

    def back(self) -> str:
        """The same page."""
        return to("checks")

    def words(self) -> dict[str, Any]:
        """Return the links and the intro of the page."""
        return {
            "actions": [Link(_("Metadata and nodes"), to("consistency"))],
            "intro": _(
                "Every row, head, batch and position of the topic is read and compared; nothing is changed."
            ),
        }

    def preview(self, fields: dict[str, Any]) -> Preview:
        """The findings."""
        topics = [fields["topic"]] if fields["topic"] else None
        since = Since(ago_ms=fields["minutes"] * 60_000)
        report = verify.verify(topics=topics, since=since, actor=self.actor)
        columns = (
            Column(_("Queue")), Column(_("Topic")), Column(_("Node")), Column(_("Findings"), right=True),
            Column(_("What")),
        )  # fmt: skip
        listed = [_checked(one) for one in report.queues[:MOST_QUEUES]]
        good = _("%d queues were checked: nothing is missing, double or out of order.") % len(report.queues)
        bad = _("%d findings. `manage.py verify` tells what each means and what to do.") % len(
            report.findings
        )
        table = plain(columns, listed, Empty(_("There is no queue to check.")))
        return Preview(effects=[bad if report.findings else good], table=table)

    def run(self, fields: dict[str, Any]) -> Text:
        """The same once more."""
        return self.preview(fields).effects[0]


def _checked(one: QueueReport) -> Sequence[Cell]:
    count = len(one.findings)
    kinds = ", ".join(sorted({finding.kind for finding in one.findings}))
    return (
        code(one.id),
        text(one.expected.topic),
        text(one.expected.node),
        number(count, tone="bad" if count else ""),
        badge(kinds, "bad") if count else badge(_("in order"), "ok"),
    )
