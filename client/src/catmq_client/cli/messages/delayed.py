"""catmq delayed and catmq recall: messages that wait for their time."""

from __future__ import annotations

import argparse

from catmq_client.cli.connection import Brokers
from catmq_client.cli.forms import is_table
from catmq_client.cli.output import Columns, at, note, plain, print_row, print_rows
from catmq_client.cli.verbs import CHANGED, TABLE, TOPIC, Argument, Verb, limit, show_row

WAITING: Columns = {
    "ID": "message_id",
    "DUE": at("due_at_ms"),
    "QUEUE": "queue",
    "KEY": "key",
    "BODY": lambda one: one["body_bytes"][:60].decode("utf-8", "replace"),
}


def delayed(args: argparse.Namespace, brokers: Brokers) -> int:
    found = brokers.admin().delayed(args.topic, after=args.after, limit=args.limit)
    rows = found["messages"]
    if is_table(args.output):
        print_rows(rows, WAITING, args.output)
    else:
        for message in rows:
            print_row(plain(message), args.output, message["body_bytes"])
    more = f"; next page: --after {found['next']}" if found["next"] else ""
    away = found.get("away")  # an older broker does not tell
    missing = (
        f"; not counted, because these nodes do not answer: {', '.join(away)}"
        if away
        else ""
    )
    note(f"{found['count']} delayed messages of {args.topic}{more}{missing}")
    return 0


def recall(args: argparse.Namespace, brokers: Brokers) -> int:
    """Recall one after the other; the first that cannot be recalled ends it."""
    for message_id in args.message_ids:
        brokers.admin().recall(message_id)
        note(f"recalled {message_id}")
        show_row({"message_id": message_id}, args.output)
    return 0


DELAYED = Verb(
    "delayed",
    "list delayed messages of a topic",
    (
        TOPIC,
        limit(20, 1000),
        Argument("--after ID", "continue after this message"),
        TABLE,
    ),
    delayed,
)
RECALL = Verb(
    "recall",
    "delete delayed messages before they are due",
    (
        Argument(
            "ID",
            "message id, as `catmq send` and `catmq delayed` print it",
            dest="message_ids",
            nargs="+",
        ),
        CHANGED,
    ),
    recall,
)
