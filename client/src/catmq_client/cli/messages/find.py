"""catmq find, catmq traces: messages of a topic by what they carry, and how one of them was
handled.
"""

from __future__ import annotations

import argparse
import time
from contextlib import suppress

from catmq_client.admin.api import Admin
from catmq_client.cli.arguments import Target, header, target, whole, wrong
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import (
    Columns,
    MessageLines,
    Progress,
    at,
    message_row,
    note,
    print_rows,
    span,
)
from catmq_client.cli.verbs import MESSAGES, TABLE, TOPIC, Argument, Verb, limit
from catmq_client.errors import OptionError

MOST = 1000  # messages a request
TRACED: Columns = {
    "GROUP": "group",
    "MEMBER": "member",
    "RETRY": "attempt",
    "OUTCOME": "outcome",
    "AT": at("at_ms"),
    "TOOK": span("took_ms"),
}


def moment(text: str) -> Target:
    with suppress(argparse.ArgumentTypeError):
        found = target(text)
        if found.to == "time":
            return found
    raise wrong(
        f"{text!r}: give a TIME like 2026-03-01T12:00, or a time ago like -15m (s, m, h, d)"
    )


def find(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print what is found, and note how much was scanned."""
    admin, wanted = brokers.admin(), carried(args)
    if not wanted:
        raise OptionError(
            "give a condition: --key, --tag, --trace-id, --header, --contains, --from or --to"
        )
    found = scanned = 0
    after, lines, progress = args.after, MessageLines(args.output), Progress()
    while True:
        most = min(MOST, args.limit - found)
        look = admin.find(args.topic, after=after, queue=args.queue, limit=most, **wanted)
        progress.end()
        for message in look["messages"]:
            lines.write(message_row(args.topic, message), message["body_bytes"])
        found, scanned, after = (
            found + len(look["messages"]),
            scanned + look["scanned"],
            look["next"],
        )
        if after is None or found >= args.limit or not args.follow_up:
            break
        if progress.due():
            progress.tell(f"{found} found, scanned {scanned} of {stored(admin, args)}")
    note(f"{found} found, scanned {scanned} of {stored(admin, args)}{left(after)}")
    return 0


def traces(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print the sampled attempts at a message, and say how to have them recorded if there
    are none.
    """
    found = brokers.admin().traces(args.topic, args.message_id)
    print_rows(found, TRACED, args.output)
    if not found:
        note(
            f"no traces of {args.message_id}: they are of a sample and kept for 3 days; to "
            "record more: "
            f"catmq subscription set GROUP {args.topic} --trace-percent 100"
        )
    return 0


def carried(args: argparse.Namespace) -> dict[str, object]:
    """Return the conditions that messages must meet, as the API names them."""
    named = {
        "key": args.key,
        "tag": args.tag,
        "trace_id": args.trace_id,
        "contains": args.contains,
    }
    wanted: dict[str, object] = {
        name: value for name, value in named.items() if value is not None
    }
    if args.header is not None:
        wanted["header"] = ":".join(args.header)
    for name, bound in (("from_ms", args.start), ("to_ms", args.end)):
        if bound is not None:
            wanted[name] = at_ms(bound)
    return wanted


def at_ms(bound: Target) -> int:
    """A time in ms since 1970; how long ago is counted by this machine's clock."""
    if bound.at_ms is not None:
        return bound.at_ms
    return int(time.time() * 1000) - (bound.ago_ms or 0)


def stored(admin: Admin, args: argparse.Namespace) -> int:
    """Return the maximum number of messages to look at: a time leaves some out unseen."""
    queues = admin.topic(args.topic)["queues"]
    return sum(
        (queue["head"] or 0) - (queue["low"] or 0)
        for queue in queues
        if args.queue is None or queue["queue"] == args.queue
    )


def left(after: str | None) -> str:
    """Return a hint on how to go on, '' at the end."""
    return (
        ""
        if after is None
        else f"; there is more: go on with --after {after}, or with --follow-up"
    )


FIND = Verb(
    "find",
    "find messages of a topic by key, tag, header, text or time",
    (
        TOPIC,
        Argument("--key KEY", "messages with exactly this key"),
        Argument("--tag TAG", "messages with exactly this tag"),
        Argument("--trace-id ID", "messages with exactly this trace id"),
        Argument("--header NAME=VALUE", "messages with exactly this header", type=header),
        Argument("--contains TEXT", "messages whose body contains this text"),
        Argument(
            "--from TIME",
            "messages stored at this time or later",
            dest="start",
            type=moment,
        ),
        Argument(
            "--to TIME",
            "messages stored before this time, such as 2026-03-01T12:00 or -15m",
            dest="end",
            type=moment,
        ),
        Argument("--queue QUEUE", "only this queue", type=whole(1)),
        limit(100, what="messages", old="--max"),
        Argument("--after ID", "continue where an earlier search ended"),
        Argument("--follow-up", "search to the end of the topic, not only for 2 s"),
        MESSAGES,
    ),
    find,
)

TRACES = Verb(
    "traces",
    "show which members handled a message, when, for how long and with what outcome",
    (
        TOPIC,
        Argument("ID", "message id, as `catmq find` prints it", dest="message_id"),
        TABLE,
    ),
    traces,
)
