"""catmq find: messages of a topic by what they carry."""

from __future__ import annotations

import argparse
import time
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.cli.arguments import Target, header, target, whole, wrong
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import add_output, line_of, message_row, note, write
from catmq_client.errors import OptionError

MOST = 1000  # messages a request
TELL_EVERY_S = 2.0


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq find`."""
    made = commands.add_parser("find", parents=[common], help="find messages of a topic by what they carry")
    made.add_argument("topic", metavar="TOPIC")
    made.add_argument("--key", metavar="KEY", help="with exactly this key")
    made.add_argument("--tag", metavar="TAG", help="with exactly this tag")
    made.add_argument("--trace-id", metavar="ID", help="with exactly this trace id")
    made.add_argument("--header", type=header, metavar="NAME=VALUE", help="with exactly this header")
    made.add_argument("--contains", metavar="TEXT", help="whose body contains this text")
    made.add_argument("--from", dest="start", type=moment, metavar="TIME", help="stored then or later")
    made.add_argument(
        "--to", dest="end", type=moment, metavar="TIME", help="stored before; 2026-03-01T12:00, or -15m"
    )
    made.add_argument("--queue", type=whole(1), metavar="QUEUE", help="only in this queue")
    made.add_argument("--max", type=whole(1), default=100, metavar="N", help="messages in all (default 100)")
    made.add_argument("--after", metavar="MESSAGE_ID", help="go on where an earlier look ended")
    made.add_argument(
        "--follow-up", action="store_true", help="go on to the end of the topic, not only for one look of 2 s"
    )
    add_output(made, "json", "body")
    made.set_defaults(command=find)


def moment(text: str) -> Target:
    """A time, or how long ago."""
    found = target(text)
    if found.to != "time":
        raise wrong(f"{text!r}: give a TIME like 2026-03-01T12:00, or how long ago: -15m (s, m, h, d)")
    return found


def find(args: argparse.Namespace, brokers: Brokers) -> int:
    """Prints what is found, and tells how much was looked at."""
    admin, wanted = brokers.admin(), carried(args)
    if not wanted:
        raise OptionError(
            "say what to look for: --key, --tag, --trace-id, --header, --contains, --from or --to"
        )
    found = scanned = 0
    after, told_at = args.after, time.monotonic()
    while True:
        limit = min(MOST, args.max - found)
        look = admin.find(args.topic, after=after, queue=args.queue, limit=limit, **wanted)
        for message in look["messages"]:
            write(line_of(message_row(args.topic, message), message["body_bytes"], args.output))
        found, scanned, after = found + len(look["messages"]), scanned + look["scanned"], look["next"]
        if after is None or found >= args.max or not args.follow_up:
            break
        if time.monotonic() - told_at > TELL_EVERY_S:
            told_at = time.monotonic()
            note(f"{found} found, scanned {scanned} of {stored(admin, args)}")
    note(f"{found} found, scanned {scanned} of {stored(admin, args)}{left(after)}")
    return 0


def carried(args: argparse.Namespace) -> dict[str, object]:
    """Return the conditions that messages must meet, as the API names them."""
    named = {"key": args.key, "tag": args.tag, "trace_id": args.trace_id, "contains": args.contains}
    wanted: dict[str, object] = {name: value for name, value in named.items() if value is not None}
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
    return "" if after is None else f"; there is more: go on with --after {after}, or with --follow-up"
