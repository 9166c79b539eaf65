"""manage.py set_reader: says with which account jobs read a node."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand, password_of
from messagestore.nodes import registry


class Command(CatmqCommand):
    help = (
        "Sets the account that Spark jobs use to read a node. It needs the right SELECT on "
        "the node's "
        "database and no other. The password is read from the environment variable "
        "CATMQ_NODE_<NAME>_READER_PASSWORD and stored encrypted. Brokers disclose it only "
        "to keys with the "
        "right admin on *."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument(
            "username", nargs="?", default="", help="omit to remove the account"
        )

    def run(self, **options: Any) -> None:
        name, username = options["node"], options["username"]
        password = password_of(name, username, "READER_PASSWORD")
        registry.set_reader(
            name=name, username=username, password=password, actor=self.actor
        )
        said = f"is read by {username}" if username else "has no reader account"
        self.stdout.write(f"Node {name} {said}.")
