"""catmq group rebalance | rebalances"""

from __future__ import annotations

import argparse
from itertools import islice
from typing import Any

from catmq_client.admin.api import PAGE
from catmq_client.admin.group_shapes import Rebalance
from catmq_client.cli.arguments import whole
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import add_output, duration, json_line, moment, note, show, table, write


def add_verbs(verbs: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of both verbs of `catmq group`."""
    now = verbs.add_parser("rebalance", parents=[common], help="share a group's queues anew, now")
    now.add_argument("name", metavar="NAME")
    now.add_argument("--dry-run", action="store_true", help="show what would move, move nothing")
    add_output(now, "table")
    now.set_defaults(command=rebalance)
    past = verbs.add_parser("rebalances", parents=[common], help="how a group's queues moved, newest first")
    past.add_argument("name", metavar="NAME")
    past.add_argument("--limit", type=whole(1), default=20, metavar="N", help="so many (default 20)")
    add_output(past, "table")
    past.set_defaults(command=list_rebalances)


def rebalance(args: argparse.Namespace, brokers: Brokers) -> int:
    """Rebalances a group and shows each move."""
    plan = brokers.admin().rebalance(args.name, dry_run=args.dry_run)
    if args.output == "json":
        for move in plan["moves"]:
            about = {"group": args.name, "dry_run": plan["dry_run"], "generation": plan["generation"]}
            write(json_line({**about, **move}))
        return 0
    show(
        table(
            ["TOPIC", "QUEUE", "FROM", "TO", "AT ONCE"],
            [(m["topic"], m["queue"], m["from"], m["to"], m["at_once"]) for m in plan["moves"]],
        )
    )
    note(
        "nothing moved (--dry-run)"
        if args.dry_run
        else f"{len(plan['moves'])} queues move; generation {plan['generation']}"
    )
    return 0


def list_rebalances(args: argparse.Namespace, brokers: Brokers) -> int:
    """Lists rebalances, as a table or one object a line."""
    rows = islice(brokers.admin().rebalances(args.name, page=min(args.limit, PAGE)), args.limit)
    if args.output == "json":
        for row in rows:
            write(json_line(row))
        return 0
    show(
        table(
            ["TIME", "GENERATION", "CAUSE", "MOVES", "LONGEST PAUSE"],
            [
                (moment(r["at_ms"]), r["generation"], r["cause"], len(r["moves"]), duration(longest(r)))
                for r in rows
            ],
        )
    )
    return 0


def longest(row: Rebalance) -> int | None:
    """Return the longest pause of a queue in ms; None: none paused, or all still do."""
    return max((move["pause_ms"] for move in row["moves"] if move["pause_ms"] is not None), default=None)
