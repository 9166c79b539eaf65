"""Findings about a database, as a table in the language of the page."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore.nodes.preflight import TEXTS, Finding, Preflight
from portal.kit.tables import Column, Columns, Empty, Table, Text, badge, plain, prose, text

ABOUT: dict[str, Text] = {
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
VERDICTS: dict[str, Text] = {
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


def table(found: Preflight) -> Table:
    columns: Columns[Finding] = [
        Column(_("What"), lambda one: text(ABOUT[one.about])),
        Column(_("Verdict"), lambda one: badge(VERDICTS[one.verdict], one.verdict)),
        Column(_("Result"), lambda one: prose(_(TEXTS[one.text]) % _words(one))),
    ]
    return plain(columns, found.findings, Empty(_("Nothing was found.")))
