"""manage.py subscribe: lets a group read a topic."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand
from messagestore.topology import subscriptions


class Command(CatmqCommand):
    """Subscribes a group to a topic."""

    help = "Subscribes a group to a topic; its position in every queue is set now."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument("group")
        parser.add_argument("topic")
        parser.add_argument(
            "--from",
            dest="start",
            choices=("earliest", "latest"),
            default="earliest",
            help="default: %(default)s",
        )

    def run(self, **options: Any) -> None:
        """Calls messagestore.topology.subscriptions.create."""
        group, topic, start = options["group"], options["topic"], options["start"]
        subscriptions.create(group=group, topic=topic, start=start, actor=self.actor)
        self.stdout.write(f"Group {group} reads topic {topic} from {start}.")
