"""manage.py set_node: changes the state and the capacity of a node."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management import CommandError

from catmq_site.management.base import CatmqCommand
from messagestore.nodes import registry


class Command(CatmqCommand):
    help = (
        "Changes settings of a node. Brokers use them within a second. read_only: no new "
        "messages; offline: "
        "nothing is read either, and the node need not answer."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument("--state", choices=("read_write", "read_only", "offline"))
        parser.add_argument(
            "--capacity-gb", type=int, metavar="N", help="disk space for its tables"
        )

    def run(self, **options: Any) -> None:
        changes = {
            name: options[name]
            for name in ("state", "capacity_gb")
            if options[name] is not None
        }
        if not changes:
            raise CommandError("Nothing to change. Give --state or --capacity-gb.")
        registry.update(name=options["node"], settings=changes, actor=self.actor)
        summary = ", ".join(f"{name} {value}" for name, value in changes.items())
        self.stdout.write(f"Node {options['node']} has {summary}.")
