"""manage.py set_tls: the former name of `set_node NODE --tls`."""

from __future__ import annotations

from argparse import ArgumentParser

from catmq_site.management.commands import set_node
from metadata.rules.tls import MODES


class Command(set_node.Command):
    help = "Former name of `set_node NODE --tls MODE`."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument("tls", choices=[*MODES])
        parser.add_argument(
            "--ca", metavar="FILE", help="with verify: certificates of CAs in PEM"
        )
