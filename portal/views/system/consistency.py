"""Does metadata agree with the nodes: what was found, and mends for what can be mended safely."""

from __future__ import annotations

from collections.abc import Sequence
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
from portal.kit.tables import Cell, Column, Empty, Text, badge, code, long, plain, text


def findings(request: HttpRequest) -> HttpResponse:
    """Show what disagrees now; every opening of the page checks anew."""
    report = verify.check(actor=actor(request))
    columns = (
        Column(_("What")), Column(_("Where")), Column(_("In figures")), Column(_("What it means")),
        Column(_("What to do")), Column(_("Repair")),
    )  # fmt: skip
    good = Empty(
        _("Metadata and the nodes agree: no table, head, position or member is missing or left over.")
    )
    return pages.show(
        request,
        "consistency",
        _("Metadata and nodes"),
        section="checks",
        table=plain(columns, [_finding(one) for one in report.findings], good),
        unchecked=sorted(report.unchecked.items()),
        actions=[Link(_("Check again"), to("consistency")), Link(_("Check messages"), to("checks"))],
        intro=_("Tables, heads, positions and members are compared; looking changes nothing."),
    )


def _finding(one: Finding) -> Sequence[Cell]:
    return (
        badge(one.kind, "warn" if one.safe else "bad"),
        text(one.where),
        text(one.what),
        text(_(one.means)),
        text(_(one.advice)),
        code(_("repair"), to("repair", one.key)) if one.safe else text(_("by hand")),
    )


class Repair(Action):
    """Mends one thing."""

    right = "admin"
    what = "check"
    section = "checks"
    danger = True
    button = lazy("Repair")

    def target(self) -> str:
        """Mends are for whoever may do everything."""
        return "*"

    def heading(self) -> Text:
        """The page's title."""
        return _("Repair")

    def back(self) -> str:
        """The findings."""
        return to("consistency")

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe what the repair would do. Raises Conflict where that is not safe."""
        found = verify.find(key=self.word("key"), actor=self.actor)
        if not found.safe:
            raise Conflict(f"{found.where}: {found.advice}")
        facts = (
            (text(_("Where")), long(found.where)),
            (text(_("In figures")), text(found.what)),
            (text(_("What it means")), text(_(found.means))),
        )
        return Preview(effects=[_(found.advice)], table=plain((Column(""), Column("")), facts, Empty("")))

    def run(self, fields: dict[str, Any]) -> Text:
        """Mends it."""
        done = verify.repair(key=self.word("key"), actor=self.actor)
        return _("Repaired: %s.") % done.where
