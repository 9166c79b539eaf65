"""catmq topic expand | shrink | queue"""

from __future__ import annotations

import argparse
from typing import Any

from catmq_client.admin.queue_shapes import LayoutChange, QueueState, Unread
from catmq_client.cli.arguments import MAX_QUEUES, whole
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import MISSING, add_output, json_line, note, show, table, write

STATES = ("read_only", "read_write")


def add(verbs: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of the commands about the queues of a topic."""
    expander = verbs.add_parser("expand", parents=[common], help="give a topic more queues")
    expander.add_argument("name", metavar="NAME")
    expander.add_argument(
        "--queues", type=whole(1, MAX_QUEUES), required=True, metavar="N", help="how many more"
    )
    expander.add_argument("--node", metavar="NODE", help="put the new queues there (default: spread)")
    add_dry_run(expander)
    expander.set_defaults(command=expand_topic)
    shrinker = verbs.add_parser(
        "shrink", parents=[common], help="close queues of a topic; they are retired once all is read"
    )
    shrinker.add_argument("name", metavar="NAME")
    which = shrinker.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--queue",
        type=whole(1),
        action="append",
        metavar="QUEUE",
        help="this one; may be given several times",
    )
    which.add_argument("--count", type=whole(1, MAX_QUEUES), metavar="N", help="so many, the newest first")
    add_dry_run(shrinker)
    shrinker.set_defaults(command=shrink_topic)
    setter = verbs.add_parser(
        "queue", parents=[common], help="the queues of a topic and what is unread in them; close or open one"
    )
    setter.add_argument("name", metavar="NAME")
    setter.add_argument("queue", nargs="?", type=whole(1), metavar="QUEUE", help="only this one")
    setter.add_argument("--state", choices=STATES, help="close it for sends, or open it")
    add_output(setter, "table")
    setter.set_defaults(command=queue)


def add_dry_run(command: argparse.ArgumentParser) -> None:
    """`--dry-run` and `--output`."""
    command.add_argument("--dry-run", action="store_true", help="only say what would happen")
    add_output(command, "table")


def expand_topic(args: argparse.Namespace, brokers: Brokers) -> int:
    """Gives a topic more queues."""
    change = brokers.admin().expand_topic(args.name, queues=args.queues, node=args.node, dry_run=args.dry_run)
    show_change(change, args.output, "would get" if change["dry_run"] else "has got")
    return 0


def shrink_topic(args: argparse.Namespace, brokers: Brokers) -> int:
    """Closes queues of a topic for good."""
    change = brokers.admin().shrink_topic(
        args.name, queues=args.queue, count=args.count, dry_run=args.dry_run
    )
    show_change(change, args.output, "would drain" if change["dry_run"] else "drains")
    return 0


def show_change(change: LayoutChange, form: str, verb: str) -> None:
    """The queues it is about, what is unread where keys leave, and in words how many keys move."""
    if form == "json":
        write(json_line(change))
        return
    headings = ["QUEUE", "NUMBER", "NODE", "STATE"]
    show(table(headings, [(q["queue"], q["number"], q["node"], q["state"]) for q in change["queues"]]))
    if change["unread"]:
        show("\n" + table(["GROUP", "UNREAD"], [(u["group"], u["messages"]) for u in change["unread"]]))
    count = len(change["queues"])
    share = f"{100 * change['moved_share']:.1f} % of the keys"
    moving = f"{share} {'would go' if change['dry_run'] else 'go'} to another queue"
    note(f"topic {change['topic']} {verb} {count} queue{'s' if count > 1 else ''}; {moving}")


def queue(args: argparse.Namespace, brokers: Brokers) -> int:
    """Shows the queues of a topic or one of them, which it closes or opens first if told to."""
    admin = brokers.admin()
    if args.state is not None and args.queue is None:
        note("catmq: --state needs a QUEUE")
        return 2
    if args.queue is None:
        found = admin.queues(args.name)
    elif args.state is None:
        found = [admin.queue(args.name, args.queue)]
    else:
        found = [admin.change_queue(args.name, args.queue, state=args.state)]
    if args.output == "json":
        for one in found:
            write(json_line(one))
        return 0
    headings = ["QUEUE", "NUMBER", "NODE", "STATE", "SLOTS", "LOW", "HEAD", "UNREAD"]
    show(table(headings, [row(one) for one in found]))
    return 0


def row(one: QueueState) -> tuple[object, ...]:
    """A queue in a table."""
    state = "draining" if one["draining"] else one["state"]
    unread = ", ".join(map(backlog, one["unread"]))
    return one["queue"], one["number"], one["node"], state, one["slots"], one["low"], one["head"], unread


def backlog(one: Unread) -> str:
    """Return a group's name with its number of unread messages."""
    return f"{one['group']}: {MISSING if one['messages'] is None else one['messages']}"
