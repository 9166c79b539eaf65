"""catmq lag, catmq offsets reset | undo | history"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from catmq_client.admin.api import Admin, given
from catmq_client.admin.group_shapes import GroupLag, Moves, Progress
from catmq_client.cli.arguments import POSITIONS, Target, target, whole
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import add_output, duration, json_line, moment, note, show, table, write


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq lag` and `catmq offsets`."""
    lag = commands.add_parser(
        "lag", parents=[common], help="how far a group is in each queue, and whether it catches up"
    )
    lag.add_argument("group", metavar="GROUP")
    add_output(lag, "table")
    lag.set_defaults(command=show_lag)
    noun = commands.add_parser("offsets", help="move a group's positions, and back")
    verbs = noun.add_subparsers(metavar="VERB", required=True)
    add_reset(verbs, common)
    undoer = verbs.add_parser(
        "undo", parents=[common], help="move positions back to where a reset found them"
    )
    undoer.add_argument("group", metavar="GROUP")
    undoer.add_argument(
        "reset",
        metavar="RESET",
        nargs="?",
        help="what `offsets reset` and `offsets history` call it (default: the last that was not undone)",
    )
    undoer.add_argument("--dry-run", action="store_true", help="show what would move, move nothing")
    add_output(undoer, "table")
    undoer.set_defaults(command=undo)
    past = verbs.add_parser("history", parents=[common], help="positions that were moved by hand")
    past.add_argument("group", metavar="GROUP")
    past.add_argument("--max", type=whole(1), default=50, metavar="N", help="moves in all (default 50)")
    add_output(past, "table")
    past.set_defaults(command=history)


def add_reset(verbs: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq offsets reset`."""
    mover = verbs.add_parser(
        "reset", parents=[common], help="move a group's positions, also while it is running"
    )
    mover.add_argument("group", metavar="GROUP")
    mover.add_argument(
        "topic", metavar="TOPIC", nargs="?", help="only in this topic (default: all that the group reads)"
    )
    mover.add_argument("--to", type=target, required=True, metavar="POSITION", help=POSITIONS)
    mover.add_argument(
        "--queue", type=whole(1), action="append", metavar="QUEUE", help="only this queue (may be repeated)"
    )
    mover.add_argument(
        "--instance", metavar="NAME", help="of a broadcasting group: the instance whose positions move"
    )
    mover.add_argument(
        "--stop",
        action="store_true",
        help="stop the group meanwhile, so that nothing is delivered in between",
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
    found = lag.get("progress")
    if found:
        note(f"{lag['group']}: {trend(found)}; a second: {rates(found)}")
    return 0


def trend(found: Progress) -> str:
    """Return True if the group catches up.

    >>> trend({"state": "catches_up", "catches_up_in_s": 720.0, "per_s": 10.0})
    'catches up in 12m00s'
    >>> trend({"state": "falls_behind", "per_s": 25.04}), trend({"state": "no_members"})
    ('falls behind by 25.0 a second', 'no members')
    """
    if found["state"] == "catches_up":
        return f"catches up in {duration(round(1000 * (found['catches_up_in_s'] or 0)))}"
    if found["state"] == "falls_behind":
        return f"falls behind by {found['per_s']:.1f} a second"
    return found["state"].replace("_", " ")


def rates(found: Progress) -> str:
    """Return what was sent to the group, pulled and handled by it, in a second of the last minute or two."""
    named = {"sent": found["sent_per_s"], "pulled": found["pulled_per_s"], "handled": found["handled_per_s"]}
    return ", ".join(f"{'unknown' if rate is None else f'{rate:.1f}'} {what}" for what, rate in named.items())


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
    """Return the age of the oldest unread message as text, '' if there is none."""
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
    return told(args, answer)


def undo(args: argparse.Namespace, brokers: Brokers) -> int:
    """Moves positions back and shows each move."""
    return told(args, brokers.admin().undo_offsets(args.group, args.reset, dry_run=args.dry_run))


def told(args: argparse.Namespace, answer: Moves) -> int:
    """Shows moves, as a table or one object a line."""
    if args.output == "json":
        about = given({name: getattr(args, name, None) for name in ("group", "topic", "instance")})
        for move in answer["moves"]:
            named = {**about, "dry_run": args.dry_run, **given({"reset": answer.get("reset")})}
            write(json_line({**named, **move}))
        return 0
    show(table(["QUEUE", "FROM", "TO", "CHANGE", "MESSAGES"], [changed(move) for move in answer["moves"]]))
    for move in answer["moves"]:
        if move.get("asked") is not None:
            note(f"queue {move['queue']}: {move['asked']} was asked for, the nearest it has is {move['to']}")
    if args.dry_run:
        note("nothing moved (--dry-run)")
    else:
        undone = f"; undo: catmq offsets undo {args.group} {answer['reset']}" if answer.get("reset") else ""
        note(f"{len(answer['moves'])} queues set{undone}")
    return 0


def changed(move: Any) -> tuple[int, int, int, str, str | None]:
    """A line of the table of moves."""
    effects = [f"{move[name]} {name}" for name in ("skipped", "repeated") if move.get(name)]
    return (
        move["queue"],
        move["from"],
        move["to"],
        f"{move['to'] - move['from']:+d}",
        " ".join(effects) or None,
    )


def history(args: argparse.Namespace, brokers: Brokers) -> int:
    """Shows the newest moves of a group."""
    rows = list(
        itertools.islice(brokers.admin().offset_moves(args.group, page=min(args.max, 1000)), args.max)
    )
    if args.output == "json":
        for row in rows:
            write(json_line({"group": args.group, **row}))
        return 0
    headings = ["RESET", "AT", "BY", "TOPIC", "QUEUE", "FROM", "TO", "UNDOES"]
    lines = [
        (
            row["reset"], moment(row["at_ms"]), row["actor"], row["topic"],
            row["queue"], row["from"], row["to"], row["undoes"],
        )
        for row in rows
    ]  # fmt: skip
    show(table(headings, lines))
    return 0


@contextmanager
def stopped(admin: Admin, args: argparse.Namespace) -> Iterator[Admin]:
    """Keeps the group stopped meanwhile, if that is wanted."""
    if not args.stop or args.dry_run or admin.group(args.group)["stopped"]:
        yield admin
        return
    admin.change_group(args.group, stopped=True)
    try:
        yield admin
    finally:
        admin.change_group(args.group, stopped=False)
