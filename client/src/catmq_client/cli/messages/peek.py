"""catmq peek: messages of a topic, without a group and without moving anything."""

from __future__ import annotations

import argparse
import heapq
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.admin.shapes import QueueRow
from catmq_client.cli.arguments import Target, target, whole, wrong
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import line_of, message_row, note, write
from catmq_client.cli.verbs import TOPIC, Argument, Verb, output
from catmq_client.errors import NotFound

MOST = 1000  # messages a request


def start(text: str) -> Target:
    if text not in ("earliest", "latest") and not text.isdecimal():
        raise wrong(f"{text!r}: give earliest, latest or an OFFSET")
    return target(text)


def peek(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print messages in the order in which they were stored."""
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
    """Return the queues to read; one whose node is down is left out and noted."""
    queues = admin.topic(args.topic)["queues"]
    if args.queue is not None:
        known = ", ".join(str(queue["queue"]) for queue in queues)
        queues = [queue for queue in queues if queue["queue"] == args.queue]
        if not queues:
            raise NotFound(f"queue {args.queue} is not a queue of topic {args.topic}: give one of {known}")
    for queue in queues:
        if queue["head"] is None:
            note(f"catmq: queue {queue['queue']} skipped: node {queue['node']} does not answer")
    return [queue for queue in queues if queue["head"] is not None]


def read(args: argparse.Namespace, admin: Admin, queue: QueueRow) -> list[dict[str, Any]]:
    """Return up to `--max` messages of one queue, oldest first."""
    low, head = queue["low"] or 0, queue["head"] or 0
    first = {"earliest": low, "latest": max(low, head - args.max)}.get(args.start.to, args.start.offset)
    if first is None or first >= head:
        return []
    found = admin.messages(args.topic, queue=queue["queue"], offset=max(low, first), limit=args.max)
    return [{**message, "queue": queue["queue"]} for message in found]


PEEK = Verb(
    "peek",
    "print messages of a topic without a group",
    (
        TOPIC,
        Argument(
            "--from POSITION",
            "earliest (default), latest (the newest messages), or an OFFSET in each queue",
            dest="start",
            type=start,
            default=Target("earliest"),
        ),
        Argument("--queue QUEUE", "only this queue", type=whole(1)),
        Argument("--max N", "maximum messages (default 10)", type=whole(1, MOST), default=10),
        output("json", "body"),
    ),
    peek,
)
