"""manage.py shrink_topic: takes queues of a topic out of use."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand
from catmq_site.management.layouts import report
from messagestore.topology import queues


class Command(CatmqCommand):
    """Shrinks a topic."""

    help = (
        "Closes queues of a topic for sends and gives their keys to the others. They are read to their end; "
        "then a job retires them, and drops their tables three days later."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument("topic")
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--queue", type=int, action="append", help="this one; may be given several times")
        which.add_argument("--count", type=int, help="so many, the newest first")
        parser.add_argument("--dry-run", action="store_true", help="only say what would happen")

    def run(self, **options: Any) -> None:
        """Calls messagestore.topology.queues.shrink."""
        named = {name: options[name] for name in ("topic", "count", "dry_run")}
        change = queues.shrink(**named, queues=options["queue"], actor=self.actor)
        self.stdout.write("\n".join(report(change, "would drain" if change.dry_run else "drains")))
