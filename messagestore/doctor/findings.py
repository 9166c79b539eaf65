"""Findings of the doctor, and its report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from msgspec import Struct

from messagestore.doctor.advice import ADVICE, Advice, Severity, preflight_advice
from messagestore.nodes import preflight
from metadata.installation import name_programs


class SubjectKind(StrEnum):
    """Kind of the thing that a finding is about."""

    NODE = "node"
    METADATA = "metadata"
    BROKER = "broker"
    JOB = "job"
    KEY = "key"
    ALARM = "alarm"
    TOPIC = "topic"
    DOCTOR = "doctor"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of an object; `name` is "" for the whole installation.

    `key` is that of ADVICE or of `preflight.TEXTS`, `values` are the values of its texts.
    """

    key: str
    kind: SubjectKind
    name: str
    advice: Advice
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def severity(self) -> Severity:
        return self.advice.severity

    @property
    def cause(self) -> str:
        return name_programs(self.advice.cause % self.values)

    @property
    def why(self) -> str:
        return self.advice.why % self.values

    @property
    def remedy(self) -> str:
        return name_programs(self.advice.remedy % self.values)


def finding(key: str, kind: SubjectKind, name: str = "", /, **values: Any) -> Finding:
    """Return a finding of ADVICE."""
    return Finding(key, kind, name, ADVICE[key], values)


def from_preflight(
    findings: Iterable[preflight.Finding], *, kind: SubjectKind, name: str = ""
) -> list[Finding]:
    """Return the findings of a preflight that are not ok."""
    return [
        Finding(
            result.text,
            kind,
            name,
            preflight_advice(about=result.about, text=result.text, verdict=result.verdict),
            result.words,
        )
        for result in findings
        if result.verdict != "ok"
    ]


class Report(Struct, frozen=True):
    """All findings, errors first, the number of checks that were made, and their duration."""

    findings: tuple[Finding, ...]
    checks: int
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """Return 0 without findings, 1 with warnings only, 2 with errors."""
        severities = {finding.severity for finding in self.findings}
        if Severity.ERROR in severities:
            return 2
        return 1 if severities else 0
