"""manage.py set_reader: says with which account jobs read a node."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand, password_of
from messagestore.nodes import registry


class Command(CatmqCommand):
    help = (
        "Gives a node the account with which Spark jobs read it. It needs SELECT on the node's database and "
        "nothing else. Its password is taken from the environment, CATMQ_NODE_<NAME>_READER_PASSWORD, and "
        "kept encrypted; brokers tell it only to keys with the right admin on a topic."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument("username", nargs="?", default="", help="leave out: the node has no such account")

    def run(self, **options: Any) -> None:
        name, username = options["node"], options["username"]
        password = password_of(name, username, "READER_PASSWORD")
        registry.set_reader(name=name, username=username, password=password, actor=self.actor)
        said = f"is read by {username}" if username else "has no reader account"
        self.stdout.write(f"Node {name} {said}.")
