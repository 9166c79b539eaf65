"""catmq dlq, catmq failed: dead letters, and messages that wait for a retry."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from catmq_client.admin.shapes import Redrive
from catmq_client.cli.arguments import whole_number
from catmq_client.cli.connection import Brokers
from catmq_client.cli.forms import is_table, paint
from catmq_client.cli.output import (
    Columns,
    field_columns,
    format_rows,
    note,
    print_rows,
    show,
    time_column,
    with_text_body,
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
    confirm_deletion,
    limit,
    listing,
    show_row,
)
from catmq_client.cli.wait import WAIT, wait_until_done
from catmq_client.errors import OptionError

# Characters of an error that a table shows.
ERROR_CHARS = 60

ONLY_TOPIC = Argument("--topic TOPIC", "only this topic")
ERROR = Argument("--error KIND", "only this kind of error, such as ValueError")
ID = Argument("ID", "id that `catmq dlq list` shows")
SELECTION = (
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
RATE = Argument(
    "--rate N", "messages per second (default 200)", type=whole_number(1, 10_000)
)

MESSAGE: Columns = {"MESSAGE": lambda row: f"{row['queue']}-{row['offset']}", "KEY": "key"}
MESSAGE_OUTPUT = Output("json", example="{id} {error}")
LAST_ERROR: Columns = {"ERROR": lambda row: first_line(row["error"])}
LIST: Columns = {
    "ID": "id",
    "DIED": time_column("died_at_ms"),
    "TOPIC": "topic",
    **MESSAGE,
    "ATTEMPTS": "attempts",
    **LAST_ERROR,
}
COUNTS: Columns = {
    "TOPIC": "topic",
    "ERROR": "error_class",
    "MESSAGES": "count",
    "FIRST": time_column("first_at_ms"),
    "LAST": time_column("last_at_ms"),
}
REDRIVES: Columns = {
    **field_columns("id state to topic error redriven"),
    "OF": "total",
    "SKIPPED": "skipped",
    "BEGAN": time_column("created_at_ms"),
    "DETAIL": "detail",
}
RETRY_TOPICS: Columns = {
    **field_columns("topic waiting unread"),
    "FAILURE TOPIC": "failure_topic",
}
WAITING: Columns = {
    "DUE": time_column("due_at_ms"),
    "TOPIC": "topic",
    **MESSAGE,
    "RETRY": "attempt",
    **LAST_ERROR,
}


def first_line(error: str) -> str:
    """Return the first line of an error, shortened for a table."""
    line = error.strip().splitlines()[0] if error.strip() else ""
    return line if len(line) <= ERROR_CHARS else line[: ERROR_CHARS - 1] + "…"


def summarize_errors(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print the number of dead letters by kind of error."""
    summary = brokers.admin().dead_letters.summary(args.group, topic=args.topic)
    print_rows(summary["errors"], COUNTS, args.output)
    note_silent_nodes(summary["away"])
    return 0


def note_silent_nodes(nodes: list[str]) -> None:
    """Note the nodes that did not answer, whose messages are missing in the output."""
    if nodes:
        note(f"not counted, because these nodes do not answer: {', '.join(nodes)}")


def show_one(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print a dead letter with headers and body."""
    message = brokers.admin().dead_letters.message(args.group, args.id)
    show_row(with_text_body(message), args.output, message["body_bytes"])
    return 0


def selection(args: argparse.Namespace) -> dict[str, Any]:
    """Return the selection of messages that the arguments make.

    Raises OptionError unless there is exactly 1 kind of selection.
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


def redrive_letters(args: argparse.Namespace, brokers: Brokers) -> int:
    """Begin a redrive. With `--wait`, return when it has ended: 1 unless it is done."""
    letters = brokers.admin().dead_letters
    redrive = letters.redrive(args.group, to=args.to, rate=args.rate, **selection(args))
    stop_hint = f"stop it: catmq dlq stop {args.group} {redrive['id']}"
    # The broker runs the redrive, so stopping the wait does not stop it.
    if args.wait:
        continues = f"the redrive goes on; {stop_hint}"
        if not wait_until_done(
            lambda: describe_progress(letters.redrive_state(args.group, redrive["id"])),
            continues=continues,
        ):
            return 1
        # Read again, so that the printed counts are the final counts.
        redrive = letters.redrive_state(args.group, redrive["id"])
    print_rows([redrive], REDRIVES, args.output)
    if redrive["state"] == "running":
        note(f"progress: catmq dlq redrives {args.group}")
        note(stop_hint)
    return 0 if redrive["state"] in {"running", "done"} else 1


def describe_progress(redrive: Redrive) -> str:
    """Return the progress of a redrive, '' when it has ended."""
    detail = f"; {redrive['detail']}" if redrive["detail"] else ""
    progress = f"{redrive['redriven']} of {redrive['total']} redriven{detail}"
    return progress if redrive["state"] == "running" else ""


def drop_letters(args: argparse.Namespace, brokers: Brokers) -> int:
    """Delete dead letters, after a confirmation."""
    # Before the question: a wrong selection must not be confirmed first.
    selected = selection(args)
    if not confirm_deletion("these dead letters of group", args.group, yes=args.yes):
        return 1
    deleted = brokers.admin().dead_letters.drop(args.group, **selected)
    note(f"{deleted} dead letters deleted")
    show_row({"group": args.group, "deleted": deleted}, args.output)
    return 0


def list_waiting(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print the messages that wait for a retry, as tables or as JSON lines."""
    answer = brokers.admin().dead_letters.failed(
        args.group, topic=args.topic, limit=args.limit
    )
    if is_table(args.output):
        topics = format_rows(answer["topics"], RETRY_TOPICS, paint(args.output, sys.stdout))
        show(topics + ("\n" if answer["messages"] else ""))
    if not is_table(args.output) or answer["messages"]:
        print_rows(answer["messages"], WAITING, args.output)
    note_silent_nodes(answer["away"])
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
            summarize_errors,
        ),
        Verb(
            "show",
            "show a dead letter with headers and body",
            (GROUP, ID, MESSAGE_OUTPUT),
            show_one,
        ),
        Verb(
            "redrive",
            "redrive dead letters, in the background",
            (GROUP, *SELECTION, TO, RATE, WAIT, TABLE),
            redrive_letters,
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
            (GROUP, Argument("REDRIVE", "id of the redrive", type=whole_number(1))),
            lambda admin, args: admin.dead_letters.stop_redrive(args.group, args.redrive),
            done="redrive {redrive} is stopped",
        ),
        Verb(
            "drop",
            "delete dead letters for good",
            (GROUP, *SELECTION, YES, CHANGED),
            drop_letters,
        ),
    ),
    old="dead",
)
FAILED = Verb(
    "failed",
    "list messages of a group that are waiting for a retry",
    (GROUP, ONLY_TOPIC, limit(50, 1000), TABLE),
    list_waiting,
)
