"""Findings about a database, as a table that people read in their language."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore.nodes.preflight import TEXTS, Finding, Preflight
from portal.kit.tables import Cell, Column, Empty, Table, Text, badge, long, plain, text

ABOUT: dict[str, Text] = {
    "reachable": lazy("Connection"),
    "version": lazy("Version"),
    "text": lazy("Character set"),
    "writable": lazy("Writing"),
    "durable": lazy("Durability"),
    "rights": lazy("Rights of the account"),
    "clock": lazy("Clock"),
    "data": lazy("What it holds"),
    "kind": lazy("Kind"),
    "place": lazy("Place"),
    "capacity": lazy("Capacity"),
}
VERDICTS: dict[str, Text] = {"ok": lazy("good"), "warn": lazy("look at it"), "bad": lazy("will not do")}


def table(found: Preflight) -> Table:
    """All findings, one a row."""
    columns = (Column(_("What")), Column(_("Verdict")), Column(_("What was found")))
    return plain(columns, [_row(one) for one in found.findings], Empty(_("Nothing was found.")))


def _row(one: Finding) -> tuple[Cell, ...]:
    said = _(TEXTS[one.text]) % one.words
    return text(ABOUT[one.about]), badge(VERDICTS[one.verdict], one.verdict), long(said)
