"""Findings of the registration checks of a node, as a table in the language of the page."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore.nodes.preflight import TEXTS, Finding, Preflight
from metadata.installation import name_programs
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
    "cluster": lazy("Cluster"),
    "replicas": lazy("Replicas"),
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


def _translate_values(finding: Finding) -> dict[str, object]:
    """Return the values for a finding's text. A reason, such as that of a missing right, is
    translated.
    """
    reason = finding.words.get("why")
    return {**finding.words, **({"why": _(reason)} if reason else {})}


def findings_table(preflight: Preflight) -> Table:
    # Texts are declared in English and translated here.
    columns: Columns[Finding] = [
        Column(_("What"), lambda row: text(CHECK_LABELS[row.about])),
        Column(_("Verdict"), lambda row: badge(VERDICT_LABELS[row.verdict], row.verdict)),
        Column(
            _("Result"),
            lambda row: prose(name_programs(_(TEXTS[row.text]) % _translate_values(row))),
        ),
    ]
    return simple_table(columns, preflight.findings, EmptyHint(_("Nothing was found.")))
