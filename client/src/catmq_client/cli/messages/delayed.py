"""catmq delayed and catmq recall: messages whose delivery is delayed."""

from __future__ import annotations

import argparse

from catmq_client.cli.connection import Brokers
from catmq_client.cli.forms import is_table
from catmq_client.cli.output import (
    Columns,
    note,
    print_row,
    print_rows,
    time_column,
    with_text_body,
)
from catmq_client.cli.verbs import CHANGED, TABLE, TOPIC, Argument, Verb, limit, show_row

WAITING: Columns = {
    "ID": "message_id",
    "DUE": time_column("due_at_ms"),
    "QUEUE": "queue",
    "KEY": "key",
    "BODY": lambda message: message["body_bytes"][:60].decode("utf-8", "replace"),
}


def delayed(args: argparse.Namespace, brokers: Brokers) -> int:
    """List delayed messages, and note how many there are."""
    answer = brokers.admin().delayed(args.topic, after=args.after, limit=args.limit)
    rows = answer["messages"]
    if is_table(args.output):
        print_rows(rows, WAITING, args.output)
    else:
        for message in rows:
            print_row(with_text_body(message), args.output, message["body_bytes"])
    more = f"; next page: --after {answer['next']}" if answer["next"] else ""
    # Brokers of an older release leave this field out.
    silent_nodes = answer.get("away")
    uncounted = (
        f"; not counted, because these nodes do not answer: {', '.join(silent_nodes)}"
        if silent_nodes
        else ""
    )
    note(f"{answer['count']} delayed messages of {args.topic}{more}{uncounted}")
    return 0


def recall(args: argparse.Namespace, brokers: Brokers) -> int:
    """Recall messages in order. The command ends at a message that cannot be recalled."""
    for message_id in args.message_ids:
        brokers.admin().recall(message_id)
        # Noted at once: after an error the user must see which messages are recalled.
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
