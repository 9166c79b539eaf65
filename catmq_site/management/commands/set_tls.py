"""manage.py set_tls: says how connections to a node are encrypted."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand
from messagestore.nodes import registry
from metadata.rules.tls import MODES


class Command(CatmqCommand):
    help = (
        "Sets the encryption of connections to a node and its replica, after a test "
        "connection. Brokers "
        f"take it up within a second. {'; '.join(MODES.values())}."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument("tls", choices=[*MODES])
        parser.add_argument(
            "--ca",
            default="",
            metavar="FILE",
            help="with verify: certificates of CAs in PEM, at the same path on all brokers "
            "(default: those "
            "of the system)",
        )

    def run(self, **options: Any) -> None:
        settings = {"tls": options["tls"], "tls_ca": options["ca"]}
        registry.update(name=options["node"], settings=settings, actor=self.actor)
        self.stdout.write(f"Node {options['node']} is reached with tls {options['tls']}.")
