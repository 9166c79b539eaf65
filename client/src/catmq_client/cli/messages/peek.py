"""catmq peek, catmq tail: messages of a topic, without a group and without moving anything."""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Iterable
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.admin.shapes import QueueRow
from catmq_client.cli.arguments import Target, header, target, whole, wrong
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import MessageLines, message_row, note
from catmq_client.cli.verbs import MESSAGES, TOPIC, Argument, Verb, limit
from catmq_client.cli.wait import followed
from catmq_client.errors import NotFound

MOST = 1000  # messages a request
EVERY_S = 1.0  # between two looks of tail


def start(text: str) -> Target:
    if text not in ("earliest", "latest") and not text.isdecimal():
        raise wrong(f"{text!r}: give earliest, latest or an OFFSET")
    return target(text)


def peek(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print messages in the order in which they were stored."""
    admin = brokers.admin()
    queues = wanted(args, admin)
    merged = in_order(read(args, admin, queue) for queue in queues)
    kept = merged[-args.limit :] if args.start.to == "latest" else merged[: args.limit]
    show(MessageLines(args.output), args.topic, kept)
    if not merged:
        note(f"{args.topic}: no messages there")
    return 0


def tail(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print the newest messages and then new ones, until Ctrl-C or SIGTERM."""
    admin = brokers.admin()
    args.start, args.limit = Target("latest"), args.last
    queues = wanted(args, admin)
    lines = MessageLines(args.output)
    newest = in_order(read(args, admin, queue) for queue in queues)[-args.last :]
    show(lines, args.topic, with_header(newest, args.header))
    following = {queue["queue"]: queue["head"] or 0 for queue in queues}

    def again() -> bool:
        found = new(args, admin, following)
        show(lines, args.topic, with_header(found, args.header))
        return bool(found)

    return followed(again, every_s=EVERY_S, begun=True)


def new(
    args: argparse.Namespace, admin: Admin, following: dict[int, int]
) -> list[dict[str, Any]]:
    """Return what was stored since; `following` has the next offset of each queue."""
    found, places = [], dict(following)
    newest = max(following, default=0)
    for queue in wanted(args, admin):
        number, low, head = queue["queue"], queue["low"] or 0, queue["head"] or 0
        # A queue that the topic has got since is read whole, one whose node was away from
        # now on.
        first = max(low, places.setdefault(number, low if number > newest else head))
        if first < head:
            messages = admin.messages(args.topic, queue=number, offset=first, limit=MOST)
            places[number] = messages[-1]["offset"] + 1 if messages else head
            found.append([{**message, "queue": number} for message in messages])
    following.update(places)  # at the end: if a request fails, all are read again
    return in_order(found)


def in_order(found: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the messages of all queues in the order in which they were stored."""
    return list(
        heapq.merge(*found, key=lambda message: (message["stored_at_ms"], message["queue"]))
    )


def with_header(
    messages: Iterable[dict[str, Any]], wanted: tuple[str, str] | None
) -> list[dict[str, Any]]:
    """Return the messages that carry a header, all of them without one."""
    if wanted is None:
        return list(messages)
    name, value = wanted
    return [one for one in messages if (one.get("headers") or {}).get(name) == value]


def show(lines: MessageLines, topic: str, messages: Iterable[dict[str, Any]]) -> None:
    for message in messages:
        lines.write(message_row(topic, message), message["body_bytes"])


def wanted(args: argparse.Namespace, admin: Admin) -> list[QueueRow]:
    """Return the queues to read; one whose node is down is left out and noted."""
    queues = admin.topic(args.topic)["queues"]
    if args.queue is not None:
        known = ", ".join(str(queue["queue"]) for queue in queues)
        queues = [queue for queue in queues if queue["queue"] == args.queue]
        if not queues:
            raise NotFound(
                f"queue {args.queue} is not a queue of topic {args.topic}: give one of {known}"
            )
    for queue in queues:
        if queue["head"] is None:
            note(
                f"catmq: queue {queue['queue']} skipped: node {queue['node']} does not answer"
            )
    return [queue for queue in queues if queue["head"] is not None]


def read(args: argparse.Namespace, admin: Admin, queue: QueueRow) -> list[dict[str, Any]]:
    """Return up to `--limit` messages of one queue, oldest first."""
    low, head = queue["low"] or 0, queue["head"] or 0
    first = {"earliest": low, "latest": max(low, head - args.limit)}.get(
        args.start.to, args.start.offset
    )
    if first is None or first >= head:
        return []
    found = admin.messages(
        args.topic, queue=queue["queue"], offset=max(low, first), limit=args.limit
    )
    return [{**message, "queue": queue["queue"]} for message in found]


QUEUE = Argument("--queue QUEUE", "only this queue", type=whole(1))

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
        QUEUE,
        limit(10, MOST, what="messages", old="--max"),
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
            type=header,
        ),
        Argument(
            "--last N",
            "newest messages to begin with (default 10)",
            type=whole(0, MOST),
            default=10,
        ),
        MESSAGES,
    ),
    tail,
)
