"""manage.py consistency: compares metadata with the nodes, and repairs differences that
are safe to repair.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from catmq_site.management.base import REFUSED, RETRY_LATER, CatmqCommand
from messagestore import verify
from messagestore.verify import Finding
from metadata.installation import name_programs


class Command(CatmqCommand):
    help = (
        "Compares metadata with the nodes: tables, log end offsets, committed offsets "
        "and members. Without --repair nothing is changed. Nothing that may contain "
        "messages is deleted. Exit codes: 0 consistent, or repaired; 1 something is "
        "wrong; 3 a node could not be checked."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        repair = parser.add_mutually_exclusive_group()
        repair.add_argument(
            "--repair", metavar="KEY", nargs="+", help="repair the findings with these keys"
        )
        repair.add_argument(
            "--repair-all",
            action="store_true",
            help="repair all findings that are safe to repair",
        )

    def run(self, **options: Any) -> None:
        keys = options["repair"] or []
        if options["repair_all"]:
            keys = [
                finding.key
                for finding in verify.check(actor=self.actor).findings
                if finding.safe
            ]
        for key in keys:
            repaired = verify.repair(key=key, actor=self.actor)
            advice = name_programs(repaired.advice)
            self.stdout.write(f"Repaired {key}: {repaired.where}. {advice}")
        # Checked after the repairs, so the report shows the remaining findings.
        report = verify.check(actor=self.actor)
        self.stdout.write(
            "\n\n".join(map(format_finding, report.findings))
            or "Metadata and the nodes agree."
        )
        for name, why in sorted(report.unchecked.items()):
            self.stderr.write(f"Node {name} could not be checked: {why}")
        if report.findings:
            raise CommandError(f"{len(report.findings)} findings.", returncode=REFUSED)
        if report.unchecked:
            raise CommandError(
                f"{len(report.unchecked)} nodes were not checked.", returncode=RETRY_LATER
            )


def format_finding(finding: Finding) -> str:
    remedy = f"Safe: --repair {finding.key}" if finding.safe else "No safe repair."
    return name_programs(
        f"{finding.kind}: {finding.where}: {finding.what}\n"
        f"  {finding.means}\n  {remedy} {finding.advice}"
    )
