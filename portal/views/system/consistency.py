"""Consistency of metadata and nodes: findings, and repairs that are safe."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore import verify
from messagestore.verify import Finding
from metadata.errors import Conflict
from metadata.installation import name_programs
from metadata.rules.rights import Right
from portal.actions.action import Action, Preview
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
    long,
    simple_table,
    text,
)


def findings(request: HttpRequest) -> HttpResponse:
    """Check metadata against the nodes and show the findings. Every request checks again."""
    report = verify.check(actor=actor(request))
    columns: Columns[Finding] = [
        Column(_("What"), lambda row: badge(row.kind, "warn" if row.safe else "bad")),
        Column(_("Where"), lambda row: text(row.where)),
        Column(_("Details"), lambda row: text(row.what)),
        Column(_("What it means"), lambda row: text(_(row.means))),
        Column(_("What to do"), lambda row: text(name_programs(_(row.advice)))),
        Column(
            _("Repair"),
            lambda row: (
                code(_("repair"), page_url("repair", row.key))
                if row.safe
                else text(_("manual"))
            ),
        ),
    ]
    good = EmptyHint(_("Metadata and nodes are consistent."))
    return pages.render_page(
        request,
        "system/consistency",
        _("Metadata and nodes"),
        section="checks",
        table=simple_table(columns, report.findings, good),
        unchecked=sorted(report.unchecked.items()),
        actions=[
            Link(_("Check again"), page_url("consistency")),
            Link(_("Check messages"), page_url("checks")),
        ],
        intro=_(
            "Tables, log end offsets, committed offsets and members are compared. Nothing "
            "is changed."
        ),
    )


class Repair(Action):
    right = Right.ADMIN
    object_kind = "check"
    section = "checks"
    danger = True
    button = lazy("Repair")
    needs_right_on_all = True
    title = lazy("Repair")
    back_to = ("consistency",)

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe the repair. Raises Conflict if it is not safe."""
        finding = verify.find(key=self.url_argument("key"), actor=self.actor)
        if not finding.safe:
            raise Conflict(f"{finding.where}: {finding.advice}")
        facts = (
            (text(_("Where")), long(finding.where)),
            (text(_("Details")), text(finding.what)),
            (text(_("What it means")), text(_(finding.means))),
        )
        columns: Columns[tuple[Cell, Cell]] = (
            Column("", itemgetter(0)),
            Column("", itemgetter(1)),
        )
        return Preview(
            effects=[name_programs(_(finding.advice))],
            table=simple_table(columns, facts, EmptyHint("")),
        )

    def run(self, fields: dict[str, Any]) -> Text:
        finding = verify.repair(key=self.url_argument("key"), actor=self.actor)
        return _("Repaired: %s.") % finding.where
