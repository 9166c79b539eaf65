"""catmq topic sql: SELECT statements for a topic's messages, a statement for each of its
nodes.

They run on MariaDB, MySQL and SQLite. Each queue is read from its newest message backwards,
so without a key a statement reads as many rows as it shows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from catmq_client.admin.shapes import PlannedNode, PlannedQueue, ReadPlan
from catmq_client.cli.arguments import whole_number
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import show
from catmq_client.cli.verbs import NAME, QUEUES, Argument, Verb
from catmq_client.errors import OptionError

COLUMNS = "msg_offset, stored_at, msg_key, tag, headers, CAST(body AS CHAR) AS body"
MAX_KEY_CHARS = 200


def statements(
    plan: ReadPlan, *, last: int, key: str | None = None, queues: Sequence[int] = ()
) -> list[str]:
    """Return the statements of a read plan, each below a comment that names its node.

    Raises OptionError for a queue of another topic.
    """
    unknown = sorted(set(queues) - {queue["queue"] for queue in plan["queues"]})
    if unknown:
        queue_ids = ", ".join(str(queue["queue"]) for queue in plan["queues"])
        raise OptionError(
            f"{unknown[0]} is not a queue of topic {plan['topic']}; its queues are {queue_ids}"
        )
    selected = [queue for queue in plan["queues"] if not queues or queue["queue"] in queues]
    return [
        build_statement(plan, node, node_queues, last=last, key=key)
        for node in plan["nodes"]
        if (node_queues := [queue for queue in selected if queue["node"] == node["name"]])
    ]


def build_statement(
    plan: ReadPlan,
    node: PlannedNode,
    queues: Sequence[PlannedQueue],
    *,
    last: int,
    key: str | None,
) -> str:
    """Return the statement for the queues of a node."""
    condition = f" AND m.msg_key = {quote(key)}" if key is not None else ""
    parts = "\nUNION ALL\n".join(select_newest(queue, condition, last) for queue in queues)
    numbers = ", ".join(str(queue["number"]) for queue in queues)
    return (
        f"-- topic {plan['topic']}, queue numbers {numbers} of {len(plan['queues'])}\n"
        f"-- node {node['name']}: {describe_node(node)}\n"
        f"{parts}\nORDER BY stored_at DESC LIMIT {last};"
    )


def select_newest(queue: PlannedQueue, condition: str, last: int) -> str:
    """Return the SELECT of a queue's newest messages. Those below `low` are past retention."""
    queue_id = queue["queue"]
    # People run it with an account of their own, so there is nothing to inject into.
    return (
        f"SELECT * FROM (SELECT {queue_id} AS queue, {COLUMNS}\n"  # noqa: S608
        f"  FROM {queue['table']} AS m\n"
        f" WHERE m.msg_offset >= (SELECT low FROM queue_head WHERE queue_id = {queue_id})"
        f"{condition}\n"
        f" ORDER BY m.msg_offset DESC LIMIT {last}) AS queue_{queue_id}"
    )


def describe_node(node: PlannedNode) -> str:
    """Return the address of a node's database, without an account."""
    if node["engine"] == "sqlite":
        return f"SQLite file {node['database']}"
    return f"{node['host']}:{node['port']}, database {node['database']}"


def quote(text: str) -> str:
    """Return a string literal for MySQL, MariaDB and SQLite.

    Raises OptionError for a backslash, which MySQL takes as an escape and SQLite does not.

    >>> quote("it's")
    "'it''s'"
    """
    if "\\" in text or len(text) > MAX_KEY_CHARS:
        raise OptionError(
            f"--key must have at most {MAX_KEY_CHARS} characters and no backslash, not {text!r}"
        )
    return "'" + text.replace("'", "''") + "'"


def print_statements(args: argparse.Namespace, brokers: Brokers) -> int:
    plan = brokers.admin().read_plan(args.name)
    texts = statements(plan, last=args.last, key=args.key, queues=args.queue or ())
    show("\n\n".join(texts) + "\n")
    return 0


VERB = Verb(
    "sql",
    "show the SELECT statements for a topic's messages, for a database client",
    (
        NAME,
        Argument("--key KEY", "only messages with this key; scans the tables"),
        QUEUES,
        Argument(
            "--last N",
            "newest messages (default 10)",
            type=whole_number(1, 1_000_000),
            default=10,
        ),
    ),
    print_statements,
)
