"""catmq lag, catmq offsets"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.admin.calls import given
from catmq_client.admin.shapes import GroupLag, Moves, Progress
from catmq_client.cli.arguments import RESET_POSITIONS, Target, reset_target
from catmq_client.cli.connection import Brokers
from catmq_client.cli.forms import is_table
from catmq_client.cli.output import Columns, at, duration, fields, note, print_rows, span
from catmq_client.cli.verbs import (
    DRY_RUN,
    GROUP,
    QUEUES,
    TABLE,
    Argument,
    Noun,
    Verb,
    limit,
    listing,
)
from catmq_client.cli.wait import followed

RESET = Argument(
    "RESET",
    "id that `offsets reset` and `offsets history` show (default: the last that was not undone)",
    nargs="?",
)
TO = Argument("--to POSITION", RESET_POSITIONS, type=reset_target, required=True)
ONLY_TOPIC = Argument("TOPIC", "only this topic (default: all subscribed)", nargs="?")
INSTANCE = Argument("--instance NAME", "only this instance of a broadcasting group")
PAUSE = Argument("--pause", "pause the group during the reset", old="--stop")

WATCH = Argument("--watch", "show it again every 2 s, until Ctrl-C")
WATCH_S = 2.0
CLEAR = "\x1b[H\x1b[2J"  # of a terminal

BEFORE: Columns = fields("topic queue")
AFTER: Columns = {
    **fields("committed head lag"),
    "BEHIND": span("lag_ms"),
    "OWNER": "owner",
}
LEASED: Columns = {
    "IN FLIGHT": "in_flight",
    "OLDEST LEASE": span("oldest_lease_ms"),
    "REDELIVERED": "redelivered",
}
MOVED: Columns = {
    **fields("queue from to"),
    "CHANGE": lambda move: f"{move['to'] - move['from']:+d}",
    "MESSAGES": lambda move: effects(move),
}
HISTORY: Columns = {
    "RESET": "reset",
    "AT": at("at_ms"),
    "BY": "actor",
    **fields("topic queue from to undoes"),
}


def show_lag(args: argparse.Namespace, brokers: Brokers) -> int:
    """Show a group's positions; with `--watch` again and again, until Ctrl-C."""
    admin = brokers.admin()
    if not args.watch:
        return show_positions(admin.lag(args.group), args)

    def again() -> bool:
        lag = admin.lag(args.group)
        if sys.stdout.isatty() and is_table(args.output):
            sys.stdout.write(CLEAR)
        note(
            f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, every {WATCH_S:.0f} s until Ctrl-C"
        )
        show_positions(lag, args)
        return False

    return followed(again, every_s=WATCH_S)


def show_positions(lag: GroupLag, args: argparse.Namespace) -> int:
    """Show positions once, as a table or one object a line for each queue."""
    rows: list[Any] = [{"group": lag["group"], **queue} for queue in lag["queues"]]
    instances = fields("instance") if any(row.get("instance") for row in rows) else {}
    leased = LEASED if any(row.get("in_flight") is not None for row in rows) else {}
    print_rows(rows, {**BEFORE, **instances, **AFTER, **leased}, args.output)
    if not is_table(args.output):
        return 0
    note(
        f"{lag['group']}: {'unknown' if lag['lag'] is None else lag['lag']} messages "
        f"unread{oldest(lag)}"
    )
    found = lag.get("progress")
    if found:
        note(f"{lag['group']}: {trend(found)}; a second: {rates(found)}")
    return 0


def trend(found: Progress) -> str:
    """Return the trend of a group's lag as text.

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
    """Return the rates of sent, pulled and handled messages of the last minute or two."""
    named = {
        "sent": found["sent_per_s"],
        "pulled": found["pulled_per_s"],
        "handled": found["handled_per_s"],
    }
    return ", ".join(
        f"{'unknown' if rate is None else f'{rate:.1f}'} {what}"
        for what, rate in named.items()
    )


def oldest(lag: GroupLag) -> str:
    """Return the age of the oldest unread message as text, '' if there is none."""
    return (
        f", the oldest {duration(lag['lag_ms'])} old"
        if lag["lag"] and lag["lag_ms"] is not None
        else ""
    )


def reset(args: argparse.Namespace, brokers: Brokers) -> int:
    to: Target = args.to
    if to.at_ms is not None:
        note(f"to {datetime.fromtimestamp(to.at_ms / 1000, UTC).isoformat()} (UTC)")
    with paused(brokers.admin(), args) as admin:
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
            source_group=to.source_group,
        )
    return show_moves(args, answer)


def undo(args: argparse.Namespace, brokers: Brokers) -> int:
    return show_moves(
        args, brokers.admin().undo_offsets(args.group, args.reset, dry_run=args.dry_run)
    )


def show_moves(args: argparse.Namespace, answer: Moves) -> int:
    """Show moves, as a table or one object a line."""
    about = given(
        {name: getattr(args, name, None) for name in ("group", "topic", "instance")}
    )
    about |= {"dry_run": args.dry_run, **given({"reset": answer.get("reset")})}
    print_rows(({**about, **move} for move in answer["moves"]), MOVED, args.output)
    if not is_table(args.output):
        return 0
    kept = [move["queue"] for move in answer["moves"] if move.get("kept")]
    for move in answer["moves"]:
        if move.get("asked") is not None:
            note(
                f"queue {move['queue']}: {move['asked']} requested, the nearest possible "
                f"is {move['to']}"
            )
    if kept:
        note(
            f"not moved, as the other group has no offset there: queue {', '.join(map(str, kept))}"
        )
    if args.dry_run:
        note("nothing moved (--dry-run)")
    else:
        undone = (
            f"; undo: catmq offsets undo {args.group} {answer['reset']}"
            if answer.get("reset")
            else ""
        )
        note(f"{len(answer['moves']) - len(kept)} queues set{undone}")
    return 0


def effects(move: Any) -> str | None:
    """Return the numbers of messages that a move skips and repeats, in a cell."""
    told = [f"{move[name]} {name}" for name in ("skipped", "repeated") if move.get(name)]
    return " ".join(told) or None


@contextmanager
def paused(admin: Admin, args: argparse.Namespace) -> Iterator[Admin]:
    """Keep the group paused meanwhile, if that is wanted."""
    if not args.pause or args.dry_run or admin.group(args.group)["stopped"]:
        yield admin
        return
    admin.change_group(args.group, stopped=True)
    try:
        yield admin
    finally:
        admin.change_group(args.group, stopped=False)


LAG = Verb(
    "lag",
    "show the lag of a group in each queue, and its trend",
    (GROUP, WATCH, TABLE),
    show_lag,
)
NOUN = Noun(
    "offsets",
    "reset offsets of a group, undo a reset",
    (
        Verb(
            "reset",
            "reset the offsets of a group, also while it is running",
            (GROUP, ONLY_TOPIC, TO, QUEUES, INSTANCE, PAUSE, DRY_RUN, TABLE),
            reset,
        ),
        Verb("undo", "undo a reset", (GROUP, RESET, DRY_RUN, TABLE), undo),
        listing(
            "history",
            "list resets of a group, newest first",
            (GROUP, limit(50, old="--max")),
            lambda admin, args: (
                {"group": args.group, **row}
                for row in admin.offset_moves(args.group, page=min(args.limit, 1000))
            ),
            columns=HISTORY,
        ),
    ),
)
