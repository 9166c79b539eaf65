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
from portal.kit.pages import Link, to
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    Empty,
    Text,
    badge,
    code,
    long,
    plain,
    text,
)


def findings(request: HttpRequest) -> HttpResponse:
    """Show what disagrees now; every opening of the page checks anew."""
    report = verify.check(actor=actor(request))
    columns: Columns[Finding] = [
        Column(_("What"), lambda one: badge(one.kind, "warn" if one.safe else "bad")),
        Column(_("Where"), lambda one: text(one.where)),
        Column(_("Details"), lambda one: text(one.what)),
        Column(_("What it means"), lambda one: text(_(one.means))),
        Column(_("What to do"), lambda one: text(_(one.advice))),
        Column(
            _("Repair"),
            lambda one: (
                code(_("repair"), to("repair", one.key)) if one.safe else text(_("manual"))
            ),
        ),
    ]
    good = Empty(_("Metadata and nodes are consistent."))
    return pages.show(
        request,
        "system/consistency",
        _("Metadata and nodes"),
        section="checks",
        table=plain(columns, report.findings, good),
        unchecked=sorted(report.unchecked.items()),
        actions=[
            Link(_("Check again"), to("consistency")),
            Link(_("Check messages"), to("checks")),
        ],
        intro=_(
            "Tables, log end offsets, committed offsets and members are compared. Nothing "
            "is changed."
        ),
    )


class Repair(Action):
    right = "admin"
    what = "check"
    section = "checks"
    danger = True
    button = lazy("Repair")
    everywhere = True
    title = lazy("Repair")
    back_to = ("consistency",)

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe what the repair would do. Raises Conflict where that is not safe."""
        found = verify.find(key=self.word("key"), actor=self.actor)
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
        return Preview(effects=[_(found.advice)], table=plain(columns, facts, Empty("")))

    def run(self, fields: dict[str, Any]) -> Text:
        done = verify.repair(key=self.word("key"), actor=self.actor)
        return _("Repaired: %s.") % done.where
