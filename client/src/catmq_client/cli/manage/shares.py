"""catmq share: the messages that members of a share group have leased."""

from __future__ import annotations

import argparse

from catmq_client.admin.shapes import Leases
from catmq_client.cli.arguments import whole_number
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import (
    Columns,
    field_columns,
    format_duration,
    note,
    print_rows,
)
from catmq_client.cli.verbs import (
    CHANGED,
    GROUP,
    TABLE,
    Argument,
    Noun,
    Verb,
    limit,
    show_row,
)

QUEUE = Argument("QUEUE", "id of the queue", type=whole_number(1))
FIRST = Argument(
    "FIRST", "first offset of the lease, as `share runs` shows it", type=whole_number(0)
)
ONE_QUEUE = Argument("--queue QUEUE", "only this queue", type=whole_number(1))

RUNS: Columns = {
    **field_columns("topic queue first end messages finished deliveries"),
    "OWNER": "owner",
    "LEASE LEFT": lambda row: format_lease_left(row["lease_left_ms"]),
}


def format_lease_left(lease_left_ms: int) -> str | None:
    """Return the time until a lease ends, as text.

    >>> format_lease_left(61_000), format_lease_left(-500)
    ('1m01s', 'over')
    """
    return "over" if lease_left_ms <= 0 else format_duration(lease_left_ms)


def show_runs(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print the leases of a group, as a table or as an object in a line for each lease."""
    leases: Leases = brokers.admin().share_runs(
        args.group, queue=args.queue, limit=args.limit
    )
    print_rows(({"group": args.group, **run} for run in leases["runs"]), RUNS, args.output)
    # The output lacks the leases on these nodes.
    if leases["away"]:
        note(f"nodes that did not answer: {', '.join(leases['away'])}")
    return 0


def release_lease(args: argparse.Namespace, brokers: Brokers) -> int:
    """End a lease. The exit code is 1 if none begins at that offset."""
    released = brokers.admin().release_runs(args.group, queue=args.queue, first=args.first)
    place = f"group {args.group}: queue {args.queue} offset {args.first}"
    note(
        f"{place}: {released} leases ended"
        if released
        else f"{place}: no lease begins there"
    )
    row = {
        "group": args.group,
        "queue": args.queue,
        "first": args.first,
        "released": released,
    }
    show_row(row, args.output)
    return 0 if released else 1


NOUN = Noun(
    "share",
    "list and end leases of a share group",
    (
        Verb(
            "runs",
            "list leases of a share group",
            (GROUP, ONE_QUEUE, limit(100, 1_000), TABLE),
            show_runs,
        ),
        Verb(
            "release",
            "end a lease, so that its messages are delivered to another member",
            (GROUP, QUEUE, FIRST, CHANGED),
            release_lease,
        ),
    ),
)
