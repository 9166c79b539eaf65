"""catmq find, catmq traces: messages of a topic by their content, and how a message was
handled.
"""

from __future__ import annotations

import argparse
import time
from contextlib import suppress

from catmq_client.admin.api import Admin
from catmq_client.cli.arguments import (
    Target,
    argument_error,
    parse_header,
    parse_target,
    whole_number,
)
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import (
    Columns,
    MessagePrinter,
    Progress,
    duration_column,
    message_row,
    note,
    print_rows,
    time_column,
)
from catmq_client.cli.verbs import MESSAGES, TABLE, TOPIC, Argument, Verb, limit
from catmq_client.errors import OptionError

# Most messages per request.
PAGE = 1000
TRACED: Columns = {
    "GROUP": "group",
    "MEMBER": "member",
    "RETRY": "attempt",
    "OUTCOME": "outcome",
    "AT": time_column("at_ms"),
    "TOOK": duration_column("took_ms"),
}


def parse_time(text: str) -> Target:
    """Return a point in time. Raises ArgumentTypeError."""
    with suppress(argparse.ArgumentTypeError):
        target = parse_target(text)
        if target.to == "time":
            return target
    raise argument_error(
        f"{text!r}: give a TIME like 2026-03-01T12:00, or a time ago like -15m (s, m, h, d)"
    )


def find_messages(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print the messages that meet the conditions, and note how many were scanned."""
    admin, filters = brokers.admin(), conditions(args)
    if not filters:
        raise OptionError(
            "give a condition: --key, --tag, --trace-id, --header, --contains, --from or --to"
        )
    found = scanned = 0
    after, lines, progress = args.after, MessagePrinter(args.output), Progress()
    # A search ends after 2 s at the broker; the next request continues where it ended.
    while True:
        page_size = min(PAGE, args.limit - found)
        answer = admin.find(
            args.topic, after=after, queue=args.queue, limit=page_size, **filters
        )
        progress.clear()
        for message in answer["messages"]:
            lines.write(message_row(args.topic, message), message["body_bytes"])
        found += len(answer["messages"])
        scanned += answer["scanned"]
        after = answer["next"]
        if after is None or found >= args.limit or not args.follow_up:
            break
        # Counting the messages is a request, so it is made only for a line that is shown.
        if progress.is_due():
            progress.show(
                f"{found} found, scanned {scanned} of {count_stored(admin, args)}"
            )
    hint = (
        ""
        if after is None
        else f"; there is more: go on with --after {after}, or with --follow-up"
    )
    searched = {"index": ", by the key index", "both": ", partly by the key index"}
    method = searched.get(answer.get("searched_by", "range"), "")
    total = count_stored(admin, args)
    note(f"{found} found, scanned {scanned} of {total}{method}{hint}")
    return 0


def traces(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print the sampled attempts at a message. Without any, note how to record more."""
    attempts = brokers.admin().traces(args.topic, args.message_id)
    print_rows(attempts, TRACED, args.output)
    if not attempts:
        note(
            f"no traces of {args.message_id}: they are of a sample and kept for 3 days; to "
            "record more: "
            f"catmq subscription set GROUP {args.topic} --trace-percent 100"
        )
    return 0


def conditions(args: argparse.Namespace) -> dict[str, object]:
    """Return the conditions that messages must meet, as the API names them."""
    options = {
        "key": args.key,
        "tag": args.tag,
        "trace_id": args.trace_id,
        "contains": args.contains,
    }
    filters: dict[str, object] = {
        name: value for name, value in options.items() if value is not None
    }
    if args.header is not None:
        filters["header"] = ":".join(args.header)
    for name, bound in (("from_ms", args.start), ("to_ms", args.end)):
        if bound is not None and bound.at_ms is not None:
            filters[name] = bound.at_ms
        elif bound is not None:
            # A time ago is counted by this machine's clock.
            filters[name] = int(time.time() * 1000) - (bound.ago_ms or 0)
    return filters


def count_stored(admin: Admin, args: argparse.Namespace) -> int:
    """Return the number of messages in the topic or queue, an upper limit of the scan.

    A condition on time skips some of them unread.
    """
    queues = admin.topic(args.topic)["queues"]
    return sum(
        (queue["head"] or 0) - (queue["low"] or 0)
        for queue in queues
        if args.queue is None or queue["queue"] == args.queue
    )


FIND = Verb(
    "find",
    "find messages of a topic by key, tag, header, text or time",
    (
        TOPIC,
        Argument("--key KEY", "messages with exactly this key"),
        Argument("--tag TAG", "messages with exactly this tag"),
        Argument("--trace-id ID", "messages with exactly this trace id"),
        Argument(
            "--header NAME=VALUE", "messages with exactly this header", type=parse_header
        ),
        Argument("--contains TEXT", "messages whose body contains this text"),
        Argument(
            "--from TIME",
            "messages stored at this time or later",
            dest="start",
            type=parse_time,
        ),
        Argument(
            "--to TIME",
            "messages stored before this time, such as 2026-03-01T12:00 or -15m",
            dest="end",
            type=parse_time,
        ),
        Argument("--queue QUEUE", "only this queue", type=whole_number(1)),
        limit(100, noun="messages", old="--max"),
        Argument("--after ID", "continue where an earlier search ended"),
        Argument("--follow-up", "search to the end of the topic, not only for 2 s"),
        MESSAGES,
    ),
    find_messages,
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
