"""catmq peek, catmq tail: messages of a topic, without a group and without commits."""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Iterable
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.admin.shapes import QueueRow
from catmq_client.cli.arguments import (
    Target,
    argument_error,
    parse_header,
    parse_target,
    whole_number,
)
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import MessagePrinter, message_row, note
from catmq_client.cli.verbs import MESSAGES, TOPIC, Argument, Verb, limit
from catmq_client.cli.wait import repeat_until_stopped
from catmq_client.errors import NotFound

# Most messages per request.
PAGE = 1000
# Time between two reads of tail.
POLL_S = 1.0


def parse_start(text: str) -> Target:
    """Return a start position. Raises ArgumentTypeError."""
    if text not in ("earliest", "latest") and not text.isdecimal():
        raise argument_error(f"{text!r}: give earliest, latest or an OFFSET")
    return parse_target(text)


def peek(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print messages in the order in which they were stored."""
    admin = brokers.admin()
    queues = queues_to_read(args, admin)
    merged = merge_by_time(read_queue(args, admin, queue) for queue in queues)
    selected = merged[-args.limit :] if args.start.to == "latest" else merged[: args.limit]
    print_messages(MessagePrinter(args.output), args.topic, selected)
    if not merged:
        note(f"{args.topic}: no messages there")
    return 0


def tail(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print the newest messages and then each new message, until Ctrl-C or SIGTERM."""
    admin = brokers.admin()
    args.start, args.limit = Target("latest"), args.last
    queues = queues_to_read(args, admin)
    lines = MessagePrinter(args.output)
    newest = merge_by_time(read_queue(args, admin, queue) for queue in queues)[-args.last :]
    print_messages(lines, args.topic, with_header(newest, args.header))
    next_offsets = {queue["queue"]: queue["head"] or 0 for queue in queues}

    def print_new() -> bool:
        messages = read_new(args, admin, next_offsets)
        print_messages(lines, args.topic, with_header(messages, args.header))
        return bool(messages)

    return repeat_until_stopped(print_new, every_s=POLL_S, begun=True)


def read_new(
    args: argparse.Namespace, admin: Admin, next_offsets: dict[int, int]
) -> list[dict[str, Any]]:
    """Return the messages stored since the last call.

    `next_offsets` has the next offset of each queue, and is updated.
    """
    batches, offsets = [], dict(next_offsets)
    newest_queue = max(next_offsets, default=0)
    for queue in queues_to_read(args, admin):
        queue_id, low, head = queue["queue"], queue["low"] or 0, queue["head"] or 0
        # A queue that was added since is read from its start. A queue whose node did not
        # answer before is read from now on.
        first = max(
            low, offsets.setdefault(queue_id, low if queue_id > newest_queue else head)
        )
        if first < head:
            messages = admin.messages(args.topic, queue=queue_id, offset=first, limit=PAGE)
            offsets[queue_id] = messages[-1]["offset"] + 1 if messages else head
            batches.append([{**message, "queue": queue_id} for message in messages])
    # Updated last: if a request fails, all queues are read again.
    next_offsets.update(offsets)
    return merge_by_time(batches)


def merge_by_time(batches: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the messages of all queues in the order in which they were stored."""
    return list(
        heapq.merge(
            *batches, key=lambda message: (message["stored_at_ms"], message["queue"])
        )
    )


def with_header(
    messages: Iterable[dict[str, Any]], header: tuple[str, str] | None
) -> list[dict[str, Any]]:
    """Return the messages that have a header, all of them if none is wanted."""
    if header is None:
        return list(messages)
    name, value = header
    return [m for m in messages if (m.get("headers") or {}).get(name) == value]


def print_messages(
    lines: MessagePrinter, topic: str, messages: Iterable[dict[str, Any]]
) -> None:
    for message in messages:
        lines.write(message_row(topic, message), message["body_bytes"])


def queues_to_read(args: argparse.Namespace, admin: Admin) -> list[QueueRow]:
    """Return the queues to read. A queue whose node does not answer is left out and noted."""
    queues = admin.topic(args.topic)["queues"]
    if args.queue is not None:
        queue_ids = ", ".join(str(queue["queue"]) for queue in queues)
        queues = [queue for queue in queues if queue["queue"] == args.queue]
        if not queues:
            raise NotFound(
                f"queue {args.queue} is not a queue of topic {args.topic}: give one of {queue_ids}"
            )
    for queue in queues:
        if queue["head"] is None:
            note(
                f"catmq: queue {queue['queue']} skipped: node {queue['node']} does not answer"
            )
    return [queue for queue in queues if queue["head"] is not None]


def read_queue(
    args: argparse.Namespace, admin: Admin, queue: QueueRow
) -> list[dict[str, Any]]:
    """Return up to `--limit` messages of a queue, oldest first."""
    low, head = queue["low"] or 0, queue["head"] or 0
    first = {"earliest": low, "latest": max(low, head - args.limit)}.get(
        args.start.to, args.start.offset
    )
    if first is None or first >= head:
        return []
    messages = admin.messages(
        args.topic, queue=queue["queue"], offset=max(low, first), limit=args.limit
    )
    return [{**message, "queue": queue["queue"]} for message in messages]


QUEUE = Argument("--queue QUEUE", "only this queue", type=whole_number(1))

PEEK = Verb(
    "peek",
    "print messages of a topic without a group",
    (
        TOPIC,
        Argument(
            "--from POSITION",
            "earliest (default), latest (the newest messages), or an OFFSET in each queue",
            dest="start",
            type=parse_start,
            default=Target("earliest"),
        ),
        QUEUE,
        limit(10, PAGE, noun="messages", old="--max"),
        MESSAGES,
    ),
    peek,
)

TAIL = Verb(
    "tail",
    "print the newest messages of a topic, then new ones until Ctrl-C",
    (
        TOPIC,
        QUEUE,
        Argument(
            "--header NAME=VALUE",
            "of these messages only those with exactly this header",
            type=parse_header,
        ),
        Argument(
            "--last N",
            "newest messages to begin with (default 10)",
            type=whole_number(0, PAGE),
            default=10,
        ),
        MESSAGES,
    ),
    tail,
)
