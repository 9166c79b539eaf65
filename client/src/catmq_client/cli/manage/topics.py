"""catmq topic: topics and their queues."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.admin.shapes import LayoutChange, QueueState, Unread
from catmq_client.cli.arguments import MAX_QUEUES, whole_number
from catmq_client.cli.connection import Brokers
from catmq_client.cli.declared import options
from catmq_client.cli.forms import Form, Paint, is_table, paint
from catmq_client.cli.manage import topic_sql
from catmq_client.cli.output import (
    MISSING,
    Columns,
    field_columns,
    format_facts,
    format_rows,
    note,
    print_row,
    print_rows,
    show,
    time_column,
)
from catmq_client.cli.verbs import (
    CHANGED,
    DRY_RUN,
    NAME,
    TABLE,
    Argument,
    Noun,
    OneOf,
    Verb,
    action,
    detail,
    listing,
    present_options,
    search,
    settings,
    show_row,
)
from catmq_client.cli.wait import WAIT, wait_until_done

COUNT = Argument(
    "--queues N", "queues (default 4)", type=whole_number(1, MAX_QUEUES), default=4
)
MORE = Argument(
    "--queues N", "queues to add", type=whole_number(1, MAX_QUEUES), required=True
)
NODE = Argument("--node NODE", "node of the new queues (default: spread over the nodes)")
CLOSED_QUEUES = OneOf(
    Argument(
        "--queue QUEUE",
        "close this queue (repeatable)",
        type=whole_number(1),
        action="append",
    ),
    Argument(
        "--queues N",
        "close N queues, the newest first",
        type=whole_number(1, MAX_QUEUES),
        old="--count",
    ),
)
QUEUE_ARGUMENT = Argument("QUEUE", "only this queue", nargs="?", type=whole_number(1))
TOKEN = Argument("TOKEN", "id of the send token")
STATE = Argument(
    "--state", "close the queue for sends, or open it", choices=("read_only", "read_write")
)
SETTINGS = options("topic")

LIST: Columns = {
    **field_columns("name kind state queues keyed"),
    "DAYS": "retention_days",
    "CREATED": time_column("created_at_ms"),
}
FACTS: Columns = {
    **field_columns("name kind state"),
    "queues": lambda topic: len(topic["queues"]),
    **field_columns("keyed on_unknown read_only key_index"),
    "retention": lambda topic: (
        f"{topic['retention_days']} days, unread {topic['keep_unread_days']} days"
    ),
    "retention bytes": "retention_bytes",
    "messages/s": "max_messages_per_s",
    "bytes/s": "max_bytes_per_s",
    **field_columns("owners description"),
    "created": time_column("created_at_ms"),
}
PRODUCERS: Columns = {
    "PRODUCER": "name",
    **field_columns("address sdk"),
    "LAST HOUR": "messages_last_hour",
    "LAST MESSAGE": time_column("last_seen_at_ms"),
    "FIRST MESSAGE": time_column("first_seen_at_ms"),
}
LAYOUT = field_columns("queue number node state")
QUEUES: Columns = {
    **LAYOUT,
    **field_columns("low head"),
    "MESSAGES": lambda queue: (
        None
        if queue["low"] is None or queue["head"] is None
        else queue["head"] - queue["low"]
    ),
}
INDEXES: Columns = field_columns("queue number node key_index")
TOKENS: Columns = {**field_columns("id"), "CREATED": time_column("created_at_ms")}
STATES: Columns = {
    **LAYOUT,
    "STATE": lambda queue: "draining" if queue["draining"] else queue["state"],
    **field_columns("slots low head"),
    "UNREAD": lambda queue: ", ".join(map(format_backlog, queue["unread"])),
}


def format_backlog(unread: Unread) -> str:
    """Return a group's name with its number of unread messages."""
    return f"{unread['group']}: {MISSING if unread['messages'] is None else unread['messages']}"


def expand_topic(args: argparse.Namespace, brokers: Brokers) -> int:
    change = brokers.admin().expand_topic(
        args.name, queues=args.queues, node=args.node, dry_run=args.dry_run
    )
    show_change(change, args.output, "would get" if change["dry_run"] else "has got")
    return 0


def shrink_topic(args: argparse.Namespace, brokers: Brokers) -> int:
    """Close queues of a topic. With `--wait`, return when they are retired."""
    admin = brokers.admin()
    change = admin.shrink_topic(
        args.name, queues=args.queue, count=args.queues, dry_run=args.dry_run
    )
    show_change(change, args.output, "would drain" if change["dry_run"] else "drains")
    if not args.wait or change["dry_run"]:
        return 0
    closed = {row["queue"] for row in change["queues"] if row["queue"] is not None}
    continues = f"the queues drain all the same; see them: catmq topic queue {args.name}"
    return (
        0
        if wait_until_done(
            lambda: describe_draining(admin, args.name, closed), continues=continues
        )
        else 1
    )


def describe_draining(admin: Admin, topic: str, closed: Collection[int]) -> str:
    """Return the backlog of closed queues as text, '' when all of them are retired."""
    rows = [
        row for row in admin.queues(topic) if row["queue"] in closed and row["draining"]
    ]
    # An unknown backlog counts as 0: its queue is still in the number of draining queues.
    unread = sum(group["messages"] or 0 for row in rows for group in row["unread"])
    return f"{len(rows)} queues drain, {unread} messages unread" if rows else ""


def topic_page(topic: Any, colours: Paint) -> str:
    """Return the output of `catmq topic show`."""
    return f"{format_facts(topic, FACTS, colours)}\n{format_rows(topic['queues'], QUEUES, colours)}"


def show_change(change: LayoutChange, form: Form, verb: str) -> None:
    """Print the changed queues and unread messages, and note the share of keys that move."""
    if not is_table(form):
        print_row(change, form)
        return
    print_rows(change["queues"], LAYOUT, form)
    if change["unread"]:
        colours = paint(form, sys.stdout)
        show(
            "\n"
            + format_rows(
                change["unread"], {"GROUP": "group", "UNREAD": "messages"}, colours
            )
        )
    count = len(change["queues"])
    share = f"{100 * change['moved_share']:.1f} % of the keys"
    moving = f"{share} {'would move' if change['dry_run'] else 'move'} to other queues"
    note(
        f"topic {change['topic']} {verb} {count} queue{'s' if count > 1 else ''}; {moving}"
    )


def show_queues(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print a topic's queues, or the given queue. `--state` closes or opens it first."""
    admin = brokers.admin()
    if args.state is not None and args.queue is None:
        note("catmq: --state requires a QUEUE")
        return 2
    queues: list[QueueState]
    if args.queue is None:
        queues = admin.queues(args.name)
    elif args.state is None:
        queues = [admin.queue(args.name, args.queue)]
    else:
        queues = [admin.change_queue(args.name, args.queue, state=args.state)]
    print_rows(queues, STATES, args.output)
    return 0


def add_token(args: argparse.Namespace, brokers: Brokers) -> int:
    """Create a send token and print it."""
    token = brokers.admin().create_send_token(args.name)
    # The API returns the token only now, so it is printed even without --output.
    if args.output == "none":
        show(token["token"] + "\n")
    show_row(token, args.output)
    note(
        f"send token {token['id']} of topic {args.name} created: Java clients without a "
        "token are refused now"
    )
    return 0


def create_topic(admin: Admin, args: argparse.Namespace) -> dict[str, Any]:
    """Create a topic. Return its name and number of queues."""
    changes = present_options(args, SETTINGS)
    topic = admin.create_topic(args.name, queues=args.queues, node=args.node, **changes)
    return {"name": topic["name"], "queues": len(topic["queues"])}


NOUN = Noun(
    "topic",
    "create, list, show, change, delete, expand, shrink topics",
    (
        action(
            "create",
            "create a topic",
            (NAME, COUNT, NODE, *SETTINGS),
            create_topic,
            done="topic {answer[name]} created: {answer[queues]} queues",
        ),
        listing(
            "list",
            "list topics",
            (search("topics"),),
            lambda admin, args: admin.topics(search=args.search),
            columns=LIST,
        ),
        detail(
            "show",
            "show a topic and its queues",
            (NAME,),
            lambda admin, args: admin.topic(args.name),
            page=topic_page,
        ),
        action(
            "delete",
            "delete a topic; its tables are dropped after 3 days",
            (NAME,),
            lambda admin, args: admin.delete_topic(args.name),
            done="topic {name} deleted: its tables are dropped after 3 days",
            asks="topic",
        ),
        settings(
            "change a topic's settings",
            (NAME,),
            SETTINGS,
            lambda admin, args, given: admin.change_topic(args.name, **given),
            label="topic {name}",
        ),
        Verb(
            "expand",
            "add queues to a topic",
            (NAME, MORE, NODE, DRY_RUN, TABLE),
            expand_topic,
        ),
        Verb(
            "shrink",
            "close queues of a topic; they are retired when all groups have read them",
            (NAME, CLOSED_QUEUES, DRY_RUN, WAIT, TABLE),
            shrink_topic,
        ),
        Verb(
            "queue",
            "show the queues of a topic, or close or open one",
            (NAME, QUEUE_ARGUMENT, STATE, TABLE),
            show_queues,
        ),
        listing(
            "tokens",
            "list the send tokens of a topic, which Java clients must name",
            (NAME,),
            lambda admin, args: admin.send_tokens(args.name),
            columns=TOKENS,
        ),
        Verb(
            "add-token",
            "create a send token for Java clients, and print it this once",
            (NAME, CHANGED),
            add_token,
        ),
        action(
            "remove-token",
            "delete a send token; without the last one every Java client may send",
            (NAME, TOKEN),
            lambda admin, args: admin.delete_send_token(args.name, args.token),
            done="send token {token} of topic {name} deleted",
            asks="send token",
        ),
        listing(
            "producers",
            "list who sent to a topic in the last 7 days",
            (NAME,),
            lambda admin, args: iter(admin.producers(args.name)),
            columns=PRODUCERS,
        ),
        listing(
            "key-index",
            "list which queues have an index on the keys of their messages",
            (NAME,),
            lambda admin, args: iter(admin.key_index(args.name)["queues"]),
            columns=INDEXES,
        ),
        topic_sql.VERB,
    ),
)
