"""catmq delayed and catmq recall: messages that wait for their time."""

from __future__ import annotations

import argparse
from typing import Any

from catmq_client.cli.arguments import whole
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import add_output, json_line, moment, note, show, table, text_or_base64, write


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq delayed` and `catmq recall`."""
    listed = commands.add_parser(
        "delayed", parents=[common], help="show messages of a topic that wait for their time"
    )
    listed.add_argument("topic", metavar="TOPIC")
    listed.add_argument("--limit", type=whole(1, 1000), default=20, metavar="N", help="how many (default 20)")
    listed.add_argument("--after", metavar="ID", help="go on behind this message")
    add_output(listed, "table", "json")
    listed.set_defaults(command=delayed)
    taken = commands.add_parser("recall", parents=[common], help="take back messages that are not due yet")
    taken.add_argument("message_ids", metavar="ID", nargs="+", help="as the send or `catmq delayed` told it")
    taken.set_defaults(command=recall)


def delayed(args: argparse.Namespace, brokers: Brokers) -> int:
    """Shows a page of them."""
    found = brokers.admin().delayed(args.topic, after=args.after, limit=args.limit)
    if args.output == "json":
        for one in found["messages"]:
            plain = {name: value for name, value in one.items() if not name.startswith("body")}
            write(json_line({**plain, **text_or_base64(one["body_bytes"])}))
    else:
        rows = [
            (one["message_id"], moment(one["due_at_ms"]), one["queue"], one["key"], _start(one["body_bytes"]))
            for one in found["messages"]
        ]
        show(table(("ID", "DUE", "QUEUE", "KEY", "BODY"), rows))
    more = f"; go on with --after {found['next']}" if found["next"] else ""
    away = found.get("away")  # an older broker does not tell
    missing = f"; not known, because these nodes do not answer: {', '.join(away)}" if away else ""
    note(f"{found['count']} messages of {args.topic} wait{more}{missing}")
    return 0


def _start(body: bytes) -> str:
    return body[:60].decode("utf-8", "replace")


def recall(args: argparse.Namespace, brokers: Brokers) -> int:
    """Recalls one after the other; the first that cannot be recalled ends it."""
    for message_id in args.message_ids:
        brokers.admin().recall(message_id)
        note(f"recalled {message_id}")
    return 0
