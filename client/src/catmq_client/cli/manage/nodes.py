"""catmq nodes"""

from __future__ import annotations

import argparse
from typing import Any

from catmq_client.admin.api import Node
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import add_output, json_line, show, table, write


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq nodes`."""
    made = commands.add_parser("nodes", parents=[common], help="the databases that hold messages")
    add_output(made, "table")
    made.set_defaults(command=list_nodes)


def list_nodes(args: argparse.Namespace, brokers: Brokers) -> int:
    """Lists nodes, as a table or one object a line."""
    rows = brokers.admin().nodes()
    if args.output == "json":
        for row in rows:
            write(json_line(row))
        return 0
    show(
        table(
            ["NAME", "KIND", "ENGINE", "STATE", "DEDICATED", "QUEUES", "WHERE"],
            [
                (n["name"], n["kind"], n["engine"], n["state"], n["dedicated"], n["queues"], where(n))
                for n in rows
            ],
        )
    )
    return 0


def where(node: Node) -> str:
    """Return the address of a node's database: host:port/schema, or its file."""
    return f"{node['host']}:{node['port']}/{node['database']}" if node["host"] else node["database"]
