"""manage.py create_group: makes a consumer group."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand
from metadata.groups import groups

SETTINGS = ("session_timeout_ms", "owners", "department", "description")


class Command(CatmqCommand):
    """Creates a consumer group."""

    help = "Creates a consumer group: its members share the queues of the topics it subscribes to."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument("name")
        parser.add_argument("--mode", choices=("clustering", "broadcasting"), default="clustering")
        parser.add_argument(
            "--session-timeout-ms",
            type=int,
            help="a member silent so long loses its queues (default 15000)",
        )
        parser.add_argument("--owners", help="who answers for it")
        parser.add_argument("--department", help="whose it is")
        parser.add_argument("--description", help="what it is for")

    def run(self, **options: Any) -> None:
        """Calls metadata.groups.groups.create."""
        settings = {name: options[name] for name in SETTINGS if options[name] is not None}
        groups.create(name=options["name"], mode=options["mode"], settings=settings, actor=self.actor)
        self.stdout.write(f"Group {options['name']} exists.")
