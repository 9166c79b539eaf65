"""catmq dlq, catmq failed"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from catmq_client.admin.dead_letters import Redrive
from catmq_client.cli.arguments import whole
from catmq_client.cli.connection import Brokers
from catmq_client.cli.forms import is_table, paint
from catmq_client.cli.output import (
    Columns,
    at,
    fields,
    note,
    plain,
    print_rows,
    rows_table,
    show,
)
from catmq_client.cli.verbs import (
    CHANGED,
    GROUP,
    TABLE,
    YES,
    Argument,
    Noun,
    Output,
    Verb,
    action,
    confirmed,
    limit,
    listing,
    show_row,
)
from catmq_client.cli.wait import WAIT, waited
from catmq_client.errors import OptionError

ERROR_CHARS = 60  # of an error in a table

ONLY_TOPIC = Argument("--topic TOPIC", "only this topic")
ERROR = Argument("--error KIND", "only this kind of error, such as ValueError")
ID = Argument("ID", "id that `catmq dlq list` shows")
CHOICE = (
    Argument("ID", "ids that `catmq dlq list` shows", nargs="*"),
    ONLY_TOPIC,
    ERROR,
    Argument("--all", "all dead letters of the group"),
)
TO = Argument(
    "--to",
    "to the group only (default), or to the topic and all its groups",
    choices=("group", "topic"),
    default="group",
)
RATE = Argument("--rate N", "messages per second (default 200)", type=whole(1, 10_000))

MESSAGE: Columns = {"MESSAGE": lambda row: f"{row['queue']}-{row['offset']}", "KEY": "key"}
ONE = Output("json", example="{id} {error}")
LAST_ERROR: Columns = {"ERROR": lambda row: first_line(row["error"])}
LIST: Columns = {
    "ID": "id",
    "DIED": at("died_at_ms"),
    "TOPIC": "topic",
    **MESSAGE,
    "ATTEMPTS": "attempts",
    **LAST_ERROR,
}
COUNTS: Columns = {
    "TOPIC": "topic",
    "ERROR": "error_class",
    "MESSAGES": "count",
    "FIRST": at("first_at_ms"),
    "LAST": at("last_at_ms"),
}
REDRIVES: Columns = {
    **fields("id state to topic error redriven"),
    "OF": "total",
    "SKIPPED": "skipped",
    "BEGAN": at("created_at_ms"),
    "DETAIL": "detail",
}
RETRY_TOPICS: Columns = {**fields("topic waiting unread"), "FAILURE TOPIC": "failure_topic"}
WAITING: Columns = {
    "DUE": at("due_at_ms"),
    "TOPIC": "topic",
    **MESSAGE,
    "RETRY": "attempt",
    **LAST_ERROR,
}


def first_line(error: str) -> str:
    """Return the first line of an error, as a table shows it."""
    first = error.strip().splitlines()[0] if error.strip() else ""
    return first if len(first) <= ERROR_CHARS else first[: ERROR_CHARS - 1] + "…"


def summarize(args: argparse.Namespace, brokers: Brokers) -> int:
    found = brokers.admin().dead_letters.summary(args.group, topic=args.topic)
    print_rows(found["errors"], COUNTS, args.output)
    note_away(found["away"])
    return 0


def note_away(nodes: list[str]) -> None:
    if nodes:
        note(f"not counted, because these nodes do not answer: {', '.join(nodes)}")


def show_one(args: argparse.Namespace, brokers: Brokers) -> int:
    message = brokers.admin().dead_letters.message(args.group, args.id)
    show_row(plain(message), args.output, message["body_bytes"])
    return 0


def chosen(args: argparse.Namespace) -> dict[str, Any]:
    """Return the choice of messages that the arguments make. Raises OptionError unless that
    is clear.
    """
    if args.id and (args.topic or args.error or args.all):
        raise OptionError("give only one: ids, or --topic and --error, or --all")
    if not (args.id or args.topic or args.error or args.all):
        raise OptionError("give ids, --topic, --error, or --all")
    return {
        "ids": args.id or None,
        "topic": args.topic,
        "error": args.error,
        "everything": args.all,
    }


def redrive(args: argparse.Namespace, brokers: Brokers) -> int:
    """Begin a redrive; with `--wait` return when it has ended, 1 unless it is done."""
    letters = brokers.admin().dead_letters
    made = letters.redrive(args.group, to=args.to, rate=args.rate, **chosen(args))
    stop = f"stop it: catmq dlq stop {args.group} {made['id']}"
    if args.wait:
        goes_on = f"the redrive goes on; {stop}"
        if not waited(
            lambda: left(letters.redrive_state(args.group, made["id"])), goes_on=goes_on
        ):
            return 1
        made = letters.redrive_state(args.group, made["id"])
    print_rows([made], REDRIVES, args.output)
    if made["state"] == "running":
        note(f"progress: catmq dlq redrives {args.group}")
        note(stop)
    return 0 if made["state"] in {"running", "done"} else 1


def left(found: Redrive) -> str:
    """Return how far a redrive is, '' when it has ended."""
    detail = f"; {found['detail']}" if found["detail"] else ""
    done = f"{found['redriven']} of {found['total']} redriven{detail}"
    return done if found["state"] == "running" else ""


def drop(args: argparse.Namespace, brokers: Brokers) -> int:
    which = chosen(args)
    if not confirmed("these dead letters of group", args.group, yes=args.yes):
        return 1
    deleted = brokers.admin().dead_letters.drop(args.group, **which)
    note(f"{deleted} dead letters deleted")
    show_row({"group": args.group, "deleted": deleted}, args.output)
    return 0


def list_waiting(args: argparse.Namespace, brokers: Brokers) -> int:
    """List what waits for a retry, as tables or one object a line."""
    found = brokers.admin().dead_letters.failed(
        args.group, topic=args.topic, limit=args.limit
    )
    if is_table(args.output):
        topics = rows_table(found["topics"], RETRY_TOPICS, paint(args.output, sys.stdout))
        show(topics + ("\n" if found["messages"] else ""))
    if not is_table(args.output) or found["messages"]:
        print_rows(found["messages"], WAITING, args.output)
    note_away(found["away"])
    return 0


NOUN = Noun(
    "dlq",
    "list, show, redrive, drop dead letters",
    (
        listing(
            "list",
            "list dead letters of a group, newest first",
            (GROUP, ONLY_TOPIC, ERROR, Argument("--key KEY", "only this key"), limit(50)),
            lambda admin, args: admin.dead_letters.messages(
                args.group,
                topic=args.topic,
                error=args.error,
                key=args.key,
                page=min(args.limit, 500),
            ),
            columns=LIST,
        ),
        Verb(
            "summary",
            "count dead letters by kind of error",
            (GROUP, ONLY_TOPIC, TABLE),
            summarize,
        ),
        Verb(
            "show", "show a dead letter with headers and body", (GROUP, ID, ONE), show_one
        ),
        Verb(
            "redrive",
            "redrive dead letters, in the background",
            (GROUP, *CHOICE, TO, RATE, WAIT, TABLE),
            redrive,
        ),
        listing(
            "redrives",
            "list redrives of a group, newest first",
            (GROUP, limit(20, 1000)),
            lambda admin, args: admin.dead_letters.redrives(args.group, limit=args.limit),
            columns=REDRIVES,
        ),
        action(
            "stop",
            "stop a redrive; messages already sent are not taken back",
            (GROUP, Argument("REDRIVE", "id of the redrive", type=whole(1))),
            lambda admin, args: admin.dead_letters.stop_redrive(args.group, args.redrive),
            done="redrive {redrive} is stopped",
        ),
        Verb("drop", "delete dead letters for good", (GROUP, *CHOICE, YES, CHANGED), drop),
    ),
    old="dead",
)
FAILED = Verb(
    "failed",
    "list messages of a group that are waiting for a retry",
    (GROUP, ONLY_TOPIC, limit(50, 1000), TABLE),
    list_waiting,
)
