"""manage.py set_account: says with which account brokers reach a node."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand, password_of
from messagestore.nodes import registry


class Command(CatmqCommand):
    help = (
        "Changes the account with which brokers reach a node, once it was tried; nothing needs a restart. "
        "The new password is taken from the environment, CATMQ_NODE_<NAME>_PASSWORD, and kept encrypted. "
        "Change it in the database first, and let the old one work until brokers have followed (a second)."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument("username")

    def run(self, **options: Any) -> None:
        name, username = options["node"], options["username"]
        password = password_of(name, username, "PASSWORD")
        registry.set_account(name=name, username=username, password=password, actor=self.actor)
        self.stdout.write(f"Node {name} is reached by {username}.")
