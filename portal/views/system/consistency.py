"""Does metadata agree with the nodes: what was found, and mends for what can be mended
safely.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore import verify
from messagestore.verify import Finding
from metadata.errors import Conflict
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
    """Show what disagrees now; every opening of the page checks anew."""
    report = verify.check(actor=actor(request))
    columns: Columns[Finding] = [
        Column(_("What"), lambda row: badge(row.kind, "warn" if row.safe else "bad")),
        Column(_("Where"), lambda row: text(row.where)),
        Column(_("Details"), lambda row: text(row.what)),
        Column(_("What it means"), lambda row: text(_(row.means))),
        Column(_("What to do"), lambda row: text(_(row.advice))),
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
    right = "admin"
    object_kind = "check"
    section = "checks"
    danger = True
    button = lazy("Repair")
    needs_right_on_all = True
    title = lazy("Repair")
    back_to = ("consistency",)

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe what the repair would do. Raises Conflict where that is not safe."""
        found = verify.find(key=self.url_argument("key"), actor=self.actor)
        if not found.safe:
            raise Conflict(f"{found.where}: {found.advice}")
        facts = (
            (text(_("Where")), long(found.where)),
            (text(_("Details")), text(found.what)),
            (text(_("What it means")), text(_(found.means))),
        )
        columns: Columns[tuple[Cell, Cell]] = (
            Column("", itemgetter(0)),
            Column("", itemgetter(1)),
        )
        return Preview(
            effects=[_(found.advice)], table=simple_table(columns, facts, EmptyHint(""))
        )

    def run(self, fields: dict[str, Any]) -> Text:
        done = verify.repair(key=self.url_argument("key"), actor=self.actor)
        return _("Repaired: %s.") % done.where
