"""manage.py create_topic: makes a topic with its queues."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand
from messagestore.topology import topics

RETENTION = ("retention_days", "keep_unread_days", "retention_bytes")
SETTINGS = (*RETENTION, "keyed", "on_unknown", "owners", "department", "description")


class Command(CatmqCommand):
    """Creates a topic."""

    help = "Creates a topic with a table per queue on the nodes; it is ready when this returns."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument("name")
        parser.add_argument("--queues", type=int, default=4, help="how many queues (default %(default)s)")
        parser.add_argument(
            "--node", help="put all queues on this node (default: spread over the normal nodes)"
        )
        parser.add_argument(
            "--retention-days", type=int, help="days that messages are kept, read or not (default 7)"
        )
        parser.add_argument(
            "--keep-unread-days", type=int, help="days that unread messages are kept (default 30, 0: off)"
        )
        parser.add_argument(
            "--retention-bytes", type=int, help="bytes that its messages may take (default: no limit)"
        )
        parser.add_argument(
            "--keyed", choices=("strict", "available"), help="keyed sends when their queue is closed"
        )
        parser.add_argument(
            "--on-unknown", choices=("fail", "resend"), help="sends whose outcome stays unknown"
        )
        parser.add_argument("--owners", help="who answers for it")
        parser.add_argument("--department", help="whose it is")
        parser.add_argument("--description", help="what it is for")

    def run(self, **options: Any) -> None:
        """Calls messagestore.topology.topics.create."""
        settings = {name: options[name] for name in SETTINGS if options[name] is not None}
        named = {name: options[name] for name in ("name", "queues", "node")}
        made = topics.create(**named, settings=settings, actor=self.actor)
        self.stdout.write(f"Topic {options['name']} is ready with {len(made.queues)} queues.")
