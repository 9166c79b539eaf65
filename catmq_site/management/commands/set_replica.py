"""manage.py set_replica: says where a node's replica is."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand
from catmq_site.management.commands.promote_node import address
from messagestore.nodes import registry


class Command(CatmqCommand):
    help = (
        "Sets the address of a node's replica. Pulls are served from the replica while the "
        "node is down, "
        "and promote_node moves the node there. The replica must have the same database "
        "and account."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument(
            "to", nargs="?", metavar="HOST:PORT", help="omit to remove the replica"
        )

    def run(self, **options: Any) -> None:
        host, port = address(options["to"])
        settings = {"replica_host": host, "replica_port": port}
        registry.update(name=options["node"], settings=settings, actor=self.actor)
        said = f"is at {options['to']}" if host else "is forgotten"
        self.stdout.write(f"The replica of node {options['node']} {said}.")
