"""manage.py set_replica: the former name of `set_node NODE --replica`."""

from __future__ import annotations

from argparse import ArgumentParser

from catmq_site.management.commands import set_node


class Command(set_node.Command):
    help = "Former name of `set_node NODE --replica HOST:PORT`."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument(
            "replica", nargs="?", default="", metavar="HOST:PORT", help="omit to remove it"
        )
