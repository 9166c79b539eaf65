"""The doctor: faults of the installation, each with its remedy. For administrators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore.doctor import diagnosis
from messagestore.doctor.advice import (
    PREFLIGHT_REMEDIES,
    Severity,
    split_preflight_text,
)
from messagestore.doctor.findings import Finding, Report, SubjectKind
from messagestore.nodes import preflight
from metadata.db import access
from metadata.installation import name_programs
from metadata.rules import tls
from portal.auth.access import actor
from portal.kit import cells, pages
from portal.kit.pages import Fact, page_url
from portal.kit.tables import Text

SUBJECT_LABELS: Mapping[SubjectKind, Text] = {
    SubjectKind.NODE: lazy("Node"),
    SubjectKind.METADATA: lazy("Metadata"),
    SubjectKind.BROKER: lazy("Broker"),
    SubjectKind.JOB: lazy("Job"),
    SubjectKind.KEY: lazy("Secret"),
    SubjectKind.ALARM: lazy("Alarm"),
    SubjectKind.TOPIC: lazy("Topic"),
    SubjectKind.DOCTOR: lazy("Doctor"),
}
# URL names of the page of an object, which has its name in the URL, and of a list.
OBJECT_PAGES = {SubjectKind.NODE: "node", SubjectKind.TOPIC: "topic"}
LIST_PAGES = {
    SubjectKind.NODE: "nodes",
    SubjectKind.BROKER: "brokers",
    SubjectKind.JOB: "jobs",
    SubjectKind.KEY: "keys",
    SubjectKind.ALARM: "alarms",
    SubjectKind.TOPIC: "topics",
}
TONES = {Severity.ERROR: "bad", Severity.WARNING: "warn"}
PURPOSES: Mapping[str, Text] = {
    "signing": lazy("signing"),
    "encryption": lazy("encryption"),
}
# Findings about a node that was not reached. Its other checks report nothing then.
NODE_NOT_CHECKED = frozenset({"away", "unfit", "node_offline", *tls.FAILURES})


class ShownFinding(NamedTuple):
    """A finding in the language of the page. `href` is "" without a page of its object."""

    tone: str
    kind: Text
    name: Text
    href: str
    cause: str
    why: str
    remedy: str


def doctor(request: HttpRequest) -> HttpResponse:
    """Show the report of the doctor. Only a POST runs the checks, which take seconds."""
    access.require_everything(actor(request), "*", what="installation")
    context: dict[str, Any] = {}
    if request.method == "POST":
        context = build_report_context(diagnosis.examine(actor=actor(request)))
    return pages.render_page(
        request,
        "system/doctor",
        _("Doctor"),
        section="doctor",
        intro=_(
            "Checks nodes, metadata, brokers, jobs, keys, alarms and retention, all at once. "
            "Nothing is changed: the rights of a node's account are tried on a table that is "
            "dropped at once."
        ),
        **context,
    )


def build_report_context(report: Report) -> dict[str, Any]:
    """Return the template's context of a report: figures, and findings by severity."""
    parts: list[tuple[Text, list[ShownFinding]]] = []
    for severity, heading in (
        (Severity.ERROR, _("Errors")),
        (Severity.WARNING, _("Warnings")),
    ):
        shown = [show(f) for f in report.findings if f.severity == severity]
        if shown:
            parts.append((heading, shown))
    counts = {
        severity: sum(finding.severity == severity for finding in report.findings)
        for severity in Severity
    }
    unchecked = list_unchecked(report.findings)
    return {
        "report": report,
        "parts": parts,
        "unchecked": unchecked,
        "tiles": [
            *(
                Fact(label, counts[severity], kind="number", tone=tone if count else "")
                for label, severity, tone, count in (
                    (_("Errors"), Severity.ERROR, "bad", counts[Severity.ERROR]),
                    (_("Warnings"), Severity.WARNING, "warn", counts[Severity.WARNING]),
                )
            ),
            Fact(_("Checks"), report.checks, kind="number"),
            Fact(
                _("Not possible"),
                len(unchecked),
                kind="number",
                tone="warn" if unchecked else "",
            ),
            Fact(_("Duration"), _("%.1f s") % report.seconds, kind="words"),
        ],
    }


def list_unchecked(findings: Sequence[Finding]) -> list[str]:
    """Return names of the checks that were not possible.

    Of a node that was not reached, or is set offline, that is a single entry.
    """
    names = []
    for finding in findings:
        if finding.kind == SubjectKind.DOCTOR:
            names.append(str(finding.values["check"]))
        elif finding.kind == SubjectKind.NODE and finding.key in NODE_NOT_CHECKED:
            names.append(_("%s: all checks") % finding.name)
    return list(dict.fromkeys(names))


def show(finding: Finding) -> ShownFinding:
    """Translate a finding. Texts are declared in English; names and errors stay as they are."""
    values = dict(finding.values)
    name: Text = finding.name
    if finding.kind == SubjectKind.ALARM and "kind" in values:
        name = values["kind"] = cells.ALARM_LABELS.get(values["kind"], finding.name)
    if "purpose" in values:
        name = values["purpose"] = PURPOSES.get(values["purpose"], values["purpose"])
    if finding.key in preflight.TEXTS:
        # The catalog has the whole text of a preflight. Its first sentence is the cause.
        text = _(preflight.TEXTS[finding.key])
        cause, remedy = split_preflight_text(text, stop=_(". "))
        override = PREFLIGHT_REMEDIES.get(finding.key)
        remedy = _(override) if override else remedy
        # Only here, `why` is a reason in English, such as that of a missing right.
        if values.get("why"):
            values["why"] = _(values["why"])
    else:
        cause, remedy = _(finding.advice.cause), _(finding.advice.remedy)
    return ShownFinding(
        TONES[finding.severity],
        SUBJECT_LABELS[finding.kind],
        name,
        _find_page(finding),
        name_programs(cause % values),
        _(finding.advice.why) % values,
        name_programs(remedy % values),
    )


def _find_page(finding: Finding) -> str:
    if finding.name and finding.kind in OBJECT_PAGES:
        return page_url(OBJECT_PAGES[finding.kind], finding.name)
    # The page of keys lists API keys, and no other secrets.
    if finding.kind == SubjectKind.KEY and finding.key != "old_key":
        return ""
    return page_url(LIST_PAGES[finding.kind]) if finding.kind in LIST_PAGES else ""
