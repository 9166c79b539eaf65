"""catmq peek: messages of a topic, without a group and without moving anything."""

from __future__ import annotations

import argparse
import heapq
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.admin.queue_shapes import QueueRow
from catmq_client.cli.arguments import Target, target, whole, wrong
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import add_output, line_of, message_row, note, write
from catmq_client.errors import NotFound

MOST = 1000  # messages a request


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq peek`."""
    made = commands.add_parser("peek", parents=[common], help="look at messages without a group")
    made.add_argument("topic", metavar="TOPIC")
    made.add_argument(
        "--from",
        dest="start",
        type=start,
        default=Target("earliest"),
        metavar="POSITION",
        help="earliest (default), latest (the newest messages), or an OFFSET in each queue",
    )
    made.add_argument("--queue", type=whole(1), metavar="QUEUE", help="only this queue")
    made.add_argument(
        "--max", type=whole(1, MOST), default=10, metavar="N", help="messages in all (default 10)"
    )
    add_output(made, "json", "body")
    made.set_defaults(command=peek)


def start(text: str) -> Target:
    """earliest, latest or an offset."""
    if text not in ("earliest", "latest") and not text.isdecimal():
        raise wrong(f"{text!r}: give earliest, latest or an OFFSET")
    return target(text)


def peek(args: argparse.Namespace, brokers: Brokers) -> int:
    """Prints messages in the order in which they were stored."""
    admin = brokers.admin()
    queues = wanted(args, admin)
    found = [read(args, admin, queue) for queue in queues]
    merged = list(heapq.merge(*found, key=lambda message: (message["stored_at_ms"], message["queue"])))
    for message in merged[-args.max :] if args.start.to == "latest" else merged[: args.max]:
        write(line_of(message_row(args.topic, message), message["body_bytes"], args.output))
    if not merged:
        note(f"{args.topic}: no messages there")
    return 0


def wanted(args: argparse.Namespace, admin: Admin) -> list[QueueRow]:
    """The queues to look at; one whose node is down is left out and told."""
    queues = admin.topic(args.topic)["queues"]
    if args.queue is not None:
        known = ", ".join(str(queue["queue"]) for queue in queues)
        queues = [queue for queue in queues if queue["queue"] == args.queue]
        if not queues:
            raise NotFound(f"queue {args.queue} is not of topic {args.topic}: give one of {known}")
    for queue in queues:
        if queue["head"] is None:
            note(f"catmq: queue {queue['queue']} left out: node {queue['node']} does not answer")
    return [queue for queue in queues if queue["head"] is not None]


def read(args: argparse.Namespace, admin: Admin, queue: QueueRow) -> list[dict[str, Any]]:
    """Up to `--max` messages of one queue, oldest first."""
    low, head = queue["low"] or 0, queue["head"] or 0
    first = {"earliest": low, "latest": max(low, head - args.max)}.get(args.start.to, args.start.offset)
    if first is None or first >= head:
        return []
    found = admin.messages(args.topic, queue=queue["queue"], offset=max(low, first), limit=args.max)
    return [{**message, "queue": queue["queue"]} for message in found]
