"""manage.py consistency: compares metadata with the nodes, and mends what can be mended
safely.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from catmq_site.management.base import LATER, REFUSED, CatmqCommand
from messagestore import verify
from messagestore.verify import Finding


class Command(CatmqCommand):
    help = (
        "Compares metadata with the nodes: tables, log end offsets, committed offsets and "
        "members. Without "
        "--repair nothing is changed. Nothing that may contain messages is deleted. Exit codes: 0 "
        "consistent, or repaired; 1 something is wrong; 3 a node could not be checked."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        chosen = parser.add_mutually_exclusive_group()
        chosen.add_argument(
            "--repair", metavar="KEY", nargs="+", help="repair the findings with these keys"
        )
        chosen.add_argument(
            "--repair-all",
            action="store_true",
            help="repair all findings that are safe to repair",
        )

    def run(self, **options: Any) -> None:
        keys = options["repair"] or []
        if options["repair_all"]:
            keys = [one.key for one in verify.check(actor=self.actor).findings if one.safe]
        for key in keys:
            done = verify.repair(key=key, actor=self.actor)
            self.stdout.write(f"Repaired {key}: {done.where}. {done.advice}")
        report = verify.check(actor=self.actor)
        self.stdout.write(
            "\n\n".join(map(shown, report.findings)) or "Metadata and the nodes agree."
        )
        for name, why in sorted(report.unchecked.items()):
            self.stderr.write(f"Node {name} could not be checked: {why}")
        if report.findings:
            raise CommandError(f"{len(report.findings)} findings.", returncode=REFUSED)
        if report.unchecked:
            raise CommandError(
                f"{len(report.unchecked)} nodes were not checked.", returncode=LATER
            )


def shown(one: Finding) -> str:
    todo = f"Safe: --repair {one.key}" if one.safe else "No safe repair."
    return f"{one.kind}: {one.where}: {one.what}\n  {one.means}\n  {todo} {one.advice}"
