"""manage.py key_index: shows, builds and drops the key indexes of topics."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from catmq_site.management.base import RETRY_LATER, CatmqCommand, align_columns
from messagestore.topology import key_indexes
from messagestore.topology.key_indexes import ChangedQueue

HEADINGS = ("TOPIC", "QUEUE", "NODE", "CHANGE", "RESULT")


class Command(CatmqCommand):
    help = (
        "Builds and drops the indexes on the keys of messages as the setting key_index of "
        "each topic says, queue by queue, while the topics are in use. The job "
        "build_key_indexes does the same every minute. If the command was killed or fails, "
        "repeat it: it goes on where it ended. Exit codes: 0 done, 1 refused, 3 a queue "
        "could not be altered."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--topic", help="only this topic (default: all)")
        parser.add_argument(
            "--dry-run", action="store_true", help="show the changes without making them"
        )
        parser.add_argument(
            "--check",
            action="store_true",
            help="check every table, also of queues whose index is ready: needed after a node "
            "was restored or promoted",
        )
        parser.add_argument(
            "--blocking",
            action="store_true",
            help="also make changes for which all writers wait: on nodes of a Galera "
            "cluster, and for queues of more than "
            f"{key_indexes.MAX_SQLITE_MESSAGES:,} messages on SQLite",
        )

    def run(self, **options: Any) -> None:
        changes = key_indexes.build(
            topic=options["topic"],
            blocking=options["blocking"],
            check=options["check"],
            dry_run=options["dry_run"],
            progress=self.progress_writer(),
            actor=self.actor,
        )
        rows = [_row(change, dry_run=options["dry_run"]) for change in changes]
        lines = align_columns([HEADINGS, *rows]) if rows else []
        failed = sum(bool(change.problem) for change in changes)
        verb = "to alter" if options["dry_run"] else "altered"
        lines.append(f"Queues {verb}: {len(changes) - failed}.")
        self.stdout.write("\n".join(lines))
        if failed:
            raise CommandError(
                f"{failed} of {len(changes)} queues cannot be altered now: see above, then "
                "repeat this.",
                returncode=RETRY_LATER,
            )


def _row(change: ChangedQueue, *, dry_run: bool) -> tuple[str, ...]:
    result = change.problem or ("" if dry_run else f"done in {change.took_s:.1f} s")
    if change.rebuilt:
        result += f", {change.rebuilt} damaged partitions rebuilt"
    verb = "build" if change.wanted else "drop"
    return change.topic, str(change.queue), change.node, verb, result
