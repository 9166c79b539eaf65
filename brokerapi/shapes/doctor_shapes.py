"""The report of the doctor."""

from __future__ import annotations

from brokerapi.shapes.fields import Answer, Number, Text


class DoctorFindingAnswer(Answer):
    """A fault, why it matters and what to do."""

    severity = Text(help_text="`warning`, or `error`: something does not work")
    key = Text(help_text="name of the fault, which keeps its meaning in later releases")
    kind = Text(help_text="node, metadata, broker, job, key, alarm, topic or doctor")
    name = Text(help_text="name of the object; empty for the whole installation")
    cause = Text(help_text="what is wrong")
    why = Text(help_text="why it matters")
    remedy = Text(help_text="what to do")


class DoctorReportAnswer(Answer):
    """Faults of the installation, errors first."""

    exit_code = Number(help_text="0: no findings; 1: only warnings; 2: errors")
    checks = Number(help_text="number of checks that were made")
    findings = DoctorFindingAnswer(many=True)
