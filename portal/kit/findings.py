"""Findings about a database, as a table in the language of the page."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore.nodes.preflight import TEXTS, Finding, Preflight
from portal.kit.tables import (
    Column,
    Columns,
    EmptyHint,
    Table,
    Text,
    badge,
    prose,
    simple_table,
    text,
)

CHECK_LABELS: dict[str, Text] = {
    "reachable": lazy("Connection"),
    "tls": lazy("TLS"),
    "version": lazy("Version"),
    "way": lazy("Way to the server"),
    "limits": lazy("Limits of the server"),
    "text": lazy("Character set"),
    "writable": lazy("Write access"),
    "durable": lazy("Durability"),
    "rights": lazy("Rights of the account"),
    "clock": lazy("Clock"),
    "schema": lazy("Schema version"),
    "data": lazy("Existing data"),
    "kind": lazy("Kind"),
    "place": lazy("Place"),
    "capacity": lazy("Capacity"),
}
VERDICT_LABELS: dict[str, Text] = {
    "ok": lazy("passed"),
    "warn": lazy("warning"),
    "bad": lazy("failed"),
}


def _words(one: Finding) -> dict[str, object]:
    """Return the words of a finding; a reason that is declared, such as that of a right, is
    translated.
    """
    why = one.words.get("why")
    return {**one.words, **({"why": _(why)} if why else {})}


def findings_table(found: Preflight) -> Table:
    columns: Columns[Finding] = [
        Column(_("What"), lambda row: text(CHECK_LABELS[row.about])),
        Column(_("Verdict"), lambda row: badge(VERDICT_LABELS[row.verdict], row.verdict)),
        Column(_("Result"), lambda row: prose(_(TEXTS[row.text]) % _words(row))),
    ]
    return simple_table(columns, found.findings, EmptyHint(_("Nothing was found.")))
