"""manage.py doctor: says what is wrong with this installation, and what to do."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from catmq_site.management.base import CatmqCommand
from messagestore.doctor import diagnosis
from messagestore.doctor.findings import Finding, Report


class Command(CatmqCommand):
    help = (
        "Checks nodes, metadata, brokers, jobs, keys, alarms and retention, and says what is "
        "wrong, why it matters and what to do. Takes a few seconds, at most 10. Exit codes: 0 "
        "nothing is wrong; 1 warnings; 2 errors."
    )
    # Keys that differ are a finding.
    checks_keys = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the report as JSON")

    def run(self, **options: Any) -> None:
        report = diagnosis.examine(actor=self.actor)
        if options["json"]:
            text = json.dumps(report_as_json(report), indent=2, ensure_ascii=False)
        else:
            text = "\n\n".join(map(format_finding, report.findings))
        if text:
            self.stdout.write(text)
        if report.exit_code:
            errors = sum(finding.severity == "error" for finding in report.findings)
            raise CommandError(
                f"{report.checks} checks: {errors} errors, "
                f"{len(report.findings) - errors} warnings.",
                returncode=report.exit_code,
            )
        if not options["json"]:
            self.stdout.write(f"{report.checks} checks: nothing is wrong.")


def format_finding(finding: Finding) -> str:
    subject = f"{finding.kind} {finding.name}".rstrip()
    return (
        f"{finding.severity.upper()} {subject}: {finding.cause}\n"
        f"  Why: {finding.why}\n"
        f"  Do: {finding.remedy}"
    )


def report_as_json(report: Report) -> dict[str, Any]:
    return {
        "exit_code": report.exit_code,
        "checks": report.checks,
        "findings": [
            {
                name: str(getattr(finding, name))
                for name in ("severity", "key", "kind", "name", "cause", "why", "remedy")
            }
            for finding in report.findings
        ],
    }
