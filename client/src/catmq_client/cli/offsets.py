"""catmq lag, catmq offsets reset"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from catmq_client.admin import Admin, GroupLag, given
from catmq_client.cli.arguments import POSITIONS, Target, target, whole
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import add_output, duration, json_line, note, show, table, write
from catmq_client.errors import Conflict


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq lag` and `catmq offsets reset`."""
    lag = commands.add_parser("lag", parents=[common], help="how far a group is in each queue")
    lag.add_argument("group", metavar="GROUP")
    add_output(lag, "table")
    lag.set_defaults(command=show_lag)
    noun = commands.add_parser("offsets", help="move a group's positions")
    verbs = noun.add_subparsers(metavar="VERB", required=True)
    mover = verbs.add_parser("reset", parents=[common], help="move a group's positions in a topic")
    mover.add_argument("group", metavar="GROUP")
    mover.add_argument("topic", metavar="TOPIC")
    mover.add_argument("--to", type=target, required=True, metavar="POSITION", help=POSITIONS)
    mover.add_argument(
        "--queue", type=whole(1), action="append", metavar="QUEUE", help="only this queue (may be repeated)"
    )
    mover.add_argument(
        "--instance", metavar="NAME", help="of a broadcasting group: the instance whose positions move"
    )
    mover.add_argument(
        "--stop", action="store_true", help="also while members are running: stops the group meanwhile"
    )
    mover.add_argument("--dry-run", action="store_true", help="show what would move, move nothing")
    add_output(mover, "table")
    mover.set_defaults(command=reset)


def show_lag(args: argparse.Namespace, brokers: Brokers) -> int:
    """Shows a group's positions, as a table or one object a line for each queue."""
    lag = brokers.admin().lag(args.group)
    if args.output == "json":
        for queue in lag["queues"]:
            write(json_line({"group": lag["group"], **queue}))
        return 0
    show(lag_table(lag))
    note(f"{lag['group']}: {'unknown' if lag['lag'] is None else lag['lag']} messages unread{oldest(lag)}")
    return 0


def lag_table(lag: GroupLag) -> str:
    """One line for each queue, of a broadcasting group for each queue and instance."""
    headings = ["TOPIC", "QUEUE", "COMMITTED", "HEAD", "LAG", "BEHIND", "OWNER"]
    rows = [
        [q["topic"], q["queue"], q["committed"], q["head"], q["lag"], duration(q["lag_ms"]), q["owner"]]
        for q in lag["queues"]
    ]
    instances = [q.get("instance") for q in lag["queues"]]
    if any(instances):
        headings.insert(2, "INSTANCE")
        for row, instance in zip(rows, instances, strict=True):
            row.insert(2, instance)
    return table(headings, rows)


def oldest(lag: GroupLag) -> str:
    """How old the oldest unread message is, if there is one."""
    return f", the oldest {duration(lag['lag_ms'])} old" if lag["lag"] and lag["lag_ms"] is not None else ""


def reset(args: argparse.Namespace, brokers: Brokers) -> int:
    """Moves positions and shows each move."""
    to: Target = args.to
    if to.at_ms is not None:
        note(f"to {datetime.fromtimestamp(to.at_ms / 1000, UTC).isoformat()} (UTC)")
    with stopped(brokers.admin(), args) as admin:
        answer = admin.reset_offsets(
            args.group,
            args.topic,
            to=to.to,
            dry_run=args.dry_run,
            queues=args.queue,
            instance=args.instance,
            offset=to.offset,
            at_ms=to.at_ms,
            ago_ms=to.ago_ms,
        )
    if args.output == "json":
        for move in answer["moves"]:
            about = {"group": args.group, "topic": args.topic, **given({"instance": args.instance})}
            write(json_line({**about, "dry_run": args.dry_run, **move}))
        return 0
    show(table(["QUEUE", "FROM", "TO", "CHANGE"], [changed(move) for move in answer["moves"]]))
    note("nothing moved (--dry-run)" if args.dry_run else f"{len(answer['moves'])} queues set")
    return 0


def changed(move: Any) -> tuple[int, int, int, str]:
    """A line of the table of moves."""
    return move["queue"], move["from"], move["to"], f"{move['to'] - move['from']:+d}"


@contextmanager
def stopped(admin: Admin, args: argparse.Namespace) -> Iterator[Admin]:
    """Keeps the group stopped meanwhile, one with running members only when told so."""
    group = admin.group(args.group)
    if group["stopped"] or args.dry_run:
        yield admin
        return
    if group["members"] and not args.stop:
        names = ", ".join(member["name"] for member in group["members"])
        raise Conflict(
            f"group {args.group} has running members ({names}): end them, or stop it meanwhile with --stop",
            code="group_running",
        )
    admin.change_group(args.group, stopped=True)
    try:
        yield admin
    finally:
        admin.change_group(args.group, stopped=False)
