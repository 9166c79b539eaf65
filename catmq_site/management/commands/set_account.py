"""manage.py set_account: the former name of `set_node NODE --username USER`."""

from __future__ import annotations

from argparse import ArgumentParser

from catmq_site.management.commands import set_node


class Command(set_node.Command):
    help = "Former name of `set_node NODE --username USER`."

    # Without the options of set_node: its run() treats an absent option as not given.
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument("username")
