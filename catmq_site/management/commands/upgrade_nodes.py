"""manage.py upgrade_nodes: raise the tables of nodes to the schema version of this release."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from typing import Any

from django.core.management.base import CommandError

from catmq_site.management.base import LATER, CatmqCommand, aligned
from messagestore.nodes import upgrade
from messagestore.nodes.upgrade import NodeUpgrade
from metadata.errors import Invalid

HEADINGS = ("NODE", "TABLE", "VERSION", "CHANGE")


class Command(CatmqCommand):
    help = (
        "Upgrades the tables of nodes to the schema version of this release, one table at "
        "a time, while "
        "brokers use them. No table is copied. First install this release on all brokers: "
        "they use nodes "
        "before and after the upgrade. If the command was killed or fails, repeat it: it "
        "goes on where it "
        "ended. Exit codes: 0 done, 1 refused, 3 a node could not be upgraded."
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
        found = upgrade.upgrade(
            node=options["node"],
            dry_run=options["dry_run"],
            pause_ms=options["pause_ms"],
            progress=self.progress(),
            actor=self.actor,
        )
        self.stdout.write("\n".join(shown(found, dry_run=options["dry_run"])))
        failed = [one for one in found if one.problem]
        for one in failed:
            self.stderr.write(f"{one.node}: {one.problem}")
        if failed:
            text = f"{len(failed)} of {len(found)} nodes could not be upgraded."
            raise CommandError(
                f"{text} Correct what is named above, then repeat this.", returncode=LATER
            )


def shown(found: Sequence[NodeUpgrade], *, dry_run: bool) -> list[str]:
    """A table of the changes, and a line for each node."""
    table = [
        (one.node, change.table, str(change.step.version), change.step.purpose)
        for one in found
        for change in one.changes
    ]
    return [*(aligned([HEADINGS, *table]) if table else ()), *_summaries(found, dry_run)]


def _summaries(found: Sequence[NodeUpgrade], dry_run: bool) -> Iterator[str]:
    for one in found:
        made = (
            f"tables to change: {len(one.changes)}"
            if dry_run
            else f"tables changed: {len(one.changes)}"
        )
        if one.problem:
            yield f"Node {one.node} was not upgraded; {made}."
        elif one.changes or one.before != one.after:
            verb = "would have" if dry_run else "has"
            yield f"Node {one.node} {verb} schema version {one.after}, before {one.before}; {made}."
        else:
            yield f"Node {one.node} has schema version {one.after}; nothing to upgrade."
