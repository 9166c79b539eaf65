"""manage.py set_account: says with which account brokers reach a node."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand, password_of
from messagestore.nodes import registry


class Command(CatmqCommand):
    help = (
        "Changes the account that brokers use for a node, after a test connection. Nothing needs a "
        "restart. The new password is read from the environment variable "
        "CATMQ_NODE_<NAME>_PASSWORD and "
        "stored encrypted. Change the password in the database first, and keep the old "
        "account valid until "
        "all brokers use the new one (a second)."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument("username")

    def run(self, **options: Any) -> None:
        name, username = options["node"], options["username"]
        password = password_of(name, username, "PASSWORD")
        registry.set_account(
            name=name, username=username, password=password, actor=self.actor
        )
        self.stdout.write(f"Node {name} is now used with account {username}.")
