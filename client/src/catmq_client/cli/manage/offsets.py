"""catmq lag, catmq offsets"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.admin.calls import drop_none
from catmq_client.admin.shapes import GroupLag, Moves, Progress
from catmq_client.cli.arguments import RESET_POSITIONS, Target, parse_reset_target
from catmq_client.cli.connection import Brokers
from catmq_client.cli.forms import is_table
from catmq_client.cli.output import (
    Columns,
    duration_column,
    field_columns,
    format_duration,
    note,
    print_rows,
    time_column,
)
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
from catmq_client.cli.wait import repeat_until_stopped

RESET = Argument(
    "RESET",
    "id that `offsets reset` and `offsets history` show (default: the last that was not undone)",
    nargs="?",
)
TO = Argument("--to POSITION", RESET_POSITIONS, type=parse_reset_target, required=True)
ONLY_TOPIC = Argument("TOPIC", "only this topic (default: all subscribed)", nargs="?")
INSTANCE = Argument("--instance NAME", "only this instance of a broadcasting group")
PAUSE = Argument("--pause", "pause the group during the reset", old="--stop")

WATCH = Argument("--watch", "show it again every 2 s, until Ctrl-C")
WATCH_S = 2.0
# Clears a terminal.
CLEAR = "\x1b[H\x1b[2J"

QUEUE_COLUMNS: Columns = field_columns("topic queue")
LAG_COLUMNS: Columns = {
    **field_columns("committed head lag"),
    "BEHIND": duration_column("lag_ms"),
    "OWNER": "owner",
}
LEASE_COLUMNS: Columns = {
    "IN FLIGHT": "in_flight",
    "OLDEST LEASE": duration_column("oldest_lease_ms"),
    "REDELIVERED": "redelivered",
}
MOVE_COLUMNS: Columns = {
    **field_columns("queue from to"),
    "CHANGE": lambda move: f"{move['to'] - move['from']:+d}",
    "MESSAGES": lambda move: format_effects(move),
}
HISTORY_COLUMNS: Columns = {
    "RESET": "reset",
    "AT": time_column("at_ms"),
    "BY": "actor",
    **field_columns("topic queue from to undoes"),
}


def show_lag(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print a group's positions; with `--watch` every WATCH_S until Ctrl-C."""
    admin = brokers.admin()
    if not args.watch:
        return show_positions(admin.lag(args.group), args)

    def show_once() -> bool:
        lag = admin.lag(args.group)
        # Programs that read the lines must not get control sequences.
        if sys.stdout.isatty() and is_table(args.output):
            sys.stdout.write(CLEAR)
        note(
            f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, every {WATCH_S:.0f} s until Ctrl-C"
        )
        show_positions(lag, args)
        return False

    return repeat_until_stopped(show_once, every_s=WATCH_S)


def show_positions(lag: GroupLag, args: argparse.Namespace) -> int:
    """Print positions, as a table or as an object in a line for each queue."""
    rows: list[Any] = [{"group": lag["group"], **queue} for queue in lag["queues"]]
    instances = (
        field_columns("instance") if any(row.get("instance") for row in rows) else {}
    )
    leased = LEASE_COLUMNS if any(row.get("in_flight") is not None for row in rows) else {}
    print_rows(rows, {**QUEUE_COLUMNS, **instances, **LAG_COLUMNS, **leased}, args.output)
    if not is_table(args.output):
        return 0
    age = ""
    if lag["lag"] and lag["lag_ms"] is not None:
        age = f", the oldest {format_duration(lag['lag_ms'])} old"
    count = "unknown" if lag["lag"] is None else lag["lag"]
    note(f"{lag['group']}: {count} messages unread{age}")
    progress = lag.get("progress")
    if progress:
        note(
            f"{lag['group']}: {describe_trend(progress)}; a second: {describe_rates(progress)}"
        )
    return 0


def describe_trend(progress: Progress) -> str:
    """Return the trend of a group's lag as text.

    >>> describe_trend({"state": "catches_up", "catches_up_in_s": 720.0, "per_s": 10.0})
    'catches up in 12m00s'
    >>> describe_trend({"state": "falls_behind", "per_s": 25.04})
    'falls behind by 25.0 a second'
    >>> describe_trend({"state": "no_members"})
    'no members'
    """
    if progress["state"] == "catches_up":
        return f"catches up in {format_duration(round(1000 * (progress['catches_up_in_s'] or 0)))}"
    if progress["state"] == "falls_behind":
        return f"falls behind by {progress['per_s']:.1f} a second"
    return progress["state"].replace("_", " ")


def describe_rates(progress: Progress) -> str:
    """Return the rates of sent, pulled and handled messages of the last minutes."""
    rates = {
        "sent": progress["sent_per_s"],
        "pulled": progress["pulled_per_s"],
        "handled": progress["handled_per_s"],
    }
    return ", ".join(
        f"{'unknown' if rate is None else f'{rate:.1f}'} {noun}"
        for noun, rate in rates.items()
    )


def reset_offsets(args: argparse.Namespace, brokers: Brokers) -> int:
    """Reset the offsets of a group and print the moves."""
    to: Target = args.to
    # A time without a zone was local time, so the user sees it in UTC.
    if to.at_ms is not None:
        note(f"to {datetime.fromtimestamp(to.at_ms / 1000, UTC).isoformat()} (UTC)")
    with paused_group(brokers.admin(), args) as admin:
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


def undo_reset(args: argparse.Namespace, brokers: Brokers) -> int:
    """Undo a reset and print the moves."""
    return show_moves(
        args, brokers.admin().undo_offsets(args.group, args.reset, dry_run=args.dry_run)
    )


def show_moves(args: argparse.Namespace, answer: Moves) -> int:
    """Print moves, as a table or as a JSON line for each move, and note the result."""
    common_fields = drop_none(
        {name: getattr(args, name, None) for name in ("group", "topic", "instance")}
    )
    common_fields |= {"dry_run": args.dry_run, **drop_none({"reset": answer.get("reset")})}
    print_rows(
        ({**common_fields, **move} for move in answer["moves"]), MOVE_COLUMNS, args.output
    )
    if not is_table(args.output):
        return 0
    unmoved = [move["queue"] for move in answer["moves"] if move.get("kept")]
    for move in answer["moves"]:
        if move.get("asked") is not None:
            note(
                f"queue {move['queue']}: {move['asked']} requested, the nearest possible "
                f"is {move['to']}"
            )
    if unmoved:
        note(
            "not moved, as the other group has no offset there: "
            f"queue {', '.join(map(str, unmoved))}"
        )
    if args.dry_run:
        note("nothing moved (--dry-run)")
    else:
        undone = (
            f"; undo: catmq offsets undo {args.group} {answer['reset']}"
            if answer.get("reset")
            else ""
        )
        note(f"{len(answer['moves']) - len(unmoved)} queues set{undone}")
    return 0


def format_effects(move: Any) -> str | None:
    """Return the numbers of messages that a move skips and repeats, for a cell."""
    counts = [f"{move[name]} {name}" for name in ("skipped", "repeated") if move.get(name)]
    return " ".join(counts) or None


@contextmanager
def paused_group(admin: Admin, args: argparse.Namespace) -> Iterator[Admin]:
    """Keep the group paused meanwhile, if `--pause` asks for it.

    A group that was already paused stays so afterwards.
    """
    if not args.pause or args.dry_run or admin.group(args.group)["stopped"]:
        yield admin
        return
    admin.change_group(args.group, stopped=True)
    try:
        yield admin
    finally:
        # Also if the reset fails: a group must not stay paused by mistake.
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
            reset_offsets,
        ),
        Verb("undo", "undo a reset", (GROUP, RESET, DRY_RUN, TABLE), undo_reset),
        listing(
            "history",
            "list resets of a group, newest first",
            (GROUP, limit(50, old="--max")),
            lambda admin, args: (
                {"group": args.group, **row}
                for row in admin.offset_moves(args.group, page=min(args.limit, 1000))
            ),
            columns=HISTORY_COLUMNS,
        ),
    ),
)
