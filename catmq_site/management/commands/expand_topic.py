"""manage.py expand_topic: gives a topic more queues."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand
from catmq_site.management.layouts import report
from messagestore.topology import queues


class Command(CatmqCommand):
    """Expands a topic."""

    help = "Adds queues to a topic, with their share of the keys; they are in use when this returns."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument("topic")
        parser.add_argument("--queues", type=int, required=True, help="how many more")
        parser.add_argument("--node", help="put them on this node (default: spread over the normal nodes)")
        parser.add_argument("--dry-run", action="store_true", help="only say what would happen")

    def run(self, **options: Any) -> None:
        """Calls messagestore.topology.queues.expand."""
        named = {name: options[name] for name in ("topic", "queues", "node", "dry_run")}
        change = queues.expand(**named, actor=self.actor)
        self.stdout.write("\n".join(report(change, "would get" if change.dry_run else "has got")))
