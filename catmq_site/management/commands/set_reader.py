"""manage.py set_reader: the former name of `set_node NODE --reader`."""

from __future__ import annotations

from argparse import ArgumentParser

from catmq_site.management.commands import set_node


class Command(set_node.Command):
    help = "Former name of `set_node NODE --reader USER`."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument(
            "reader",
            nargs="?",
            default="",
            metavar="username",
            help="omit to remove the account",
        )
