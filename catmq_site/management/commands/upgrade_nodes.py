"""manage.py upgrade_nodes: upgrades the tables of nodes to the schema version of this
release.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError

from catmq_site.management.base import RETRY_LATER, CatmqCommand, align_columns
from messagestore.nodes import upgrade
from messagestore.nodes.upgrade import NodeUpgrade
from metadata.errors import Invalid

HEADINGS = ("NODE", "TABLE", "VERSION", "CHANGE")


class Command(CatmqCommand):
    help = (
        "Upgrades the tables of nodes to the schema version of this release, one table "
        "at a time, while brokers use them. No table is copied. First install this "
        "release on all brokers: they use nodes before and after the upgrade. If the "
        "command was killed or fails, repeat it: it goes on where it ended. Exit codes: "
        "0 done, 1 refused, 3 a node could not be upgraded."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--node", help="only this node (default: all)")
        parser.add_argument(
            "--dry-run", action="store_true", help="show the changes without making them"
        )
        parser.add_argument(
            "--pause-ms",
            type=int,
            default=upgrade.PAUSE_MS,
            metavar="N",
            help="milliseconds between two tables, because senders wait for each (default "
            "%(default)s)",
        )

    def run(self, **options: Any) -> None:
        if options["pause_ms"] < 0:
            raise Invalid.field("pause-ms", "must not be negative")
        upgrades = upgrade.upgrade(
            node=options["node"],
            dry_run=options["dry_run"],
            pause_ms=options["pause_ms"],
            progress=self.progress_writer(),
            actor=self.actor,
        )
        self.stdout.write("\n".join(format_changes(upgrades, dry_run=options["dry_run"])))
        # A node that fails does not stop the others: brokers use nodes of both versions.
        failed = [node for node in upgrades if node.problem]
        for node in failed:
            self.stderr.write(f"{node.node}: {node.problem}")
        if failed:
            text = f"{len(failed)} of {len(upgrades)} nodes could not be upgraded."
            raise CommandError(
                f"{text} Correct what is named above, then repeat this.",
                returncode=RETRY_LATER,
            )


def format_changes(upgrades: Sequence[NodeUpgrade], *, dry_run: bool) -> list[str]:
    """Return the lines of a table of the changes, and a line for each node."""
    table = [
        (node.node, change.table, str(change.step.version), change.step.purpose)
        for node in upgrades
        for change in node.changes
    ]
    lines = align_columns([HEADINGS, *table]) if table else []
    for node in upgrades:
        changes = f"tables {'to change' if dry_run else 'changed'}: {len(node.changes)}"
        if node.problem:
            lines.append(f"Node {node.node} was not upgraded; {changes}.")
        elif node.changes or node.before != node.after:
            verb = "would have" if dry_run else "has"
            lines.append(
                f"Node {node.node} {verb} schema version {node.after}, before "
                f"{node.before}; {changes}."
            )
        else:
            lines.append(
                f"Node {node.node} has schema version {node.after}; nothing to upgrade."
            )
    return lines
