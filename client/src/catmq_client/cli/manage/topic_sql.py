"""catmq topic sql: SELECT statements for a topic's messages, one for each node that has
some of its queues.

They run on MariaDB, MySQL and SQLite. Each queue is read from its newest message backwards,
so without a key a statement reads as many rows as it shows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from catmq_client.admin.shapes import PlannedNode, PlannedQueue, ReadPlan
from catmq_client.cli.arguments import whole
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import show
from catmq_client.cli.verbs import NAME, QUEUES, Argument, Verb
from catmq_client.errors import OptionError

COLUMNS = "msg_offset, stored_at, msg_key, tag, headers, CAST(body AS CHAR) AS body"
LONGEST_KEY = 200


def statements(
    plan: ReadPlan, *, last: int, key: str | None = None, queues: Sequence[int] = ()
) -> list[str]:
    """Return the statements of a read plan, each below a comment that names its node.

    Raises OptionError for a queue that is none of the topic's.
    """
    unknown = sorted(set(queues) - {one["queue"] for one in plan["queues"]})
    if unknown:
        known = ", ".join(str(one["queue"]) for one in plan["queues"])
        raise OptionError(
            f"{unknown[0]} is not a queue of topic {plan['topic']}; its queues are {known}"
        )
    wanted = [one for one in plan["queues"] if not queues or one["queue"] in queues]
    return [
        statement(plan, node, mine, last=last, key=key)
        for node in plan["nodes"]
        if (mine := [one for one in wanted if one["node"] == node["name"]])
    ]


def statement(
    plan: ReadPlan,
    node: PlannedNode,
    queues: Sequence[PlannedQueue],
    *,
    last: int,
    key: str | None,
) -> str:
    """Return the statement of one node."""
    where = f" AND m.msg_key = {quoted(key)}" if key is not None else ""
    parts = "\nUNION ALL\n".join(newest(one, where, last) for one in queues)
    numbers = ", ".join(str(one["number"]) for one in queues)
    return (
        f"-- topic {plan['topic']}, queue numbers {numbers} of {len(plan['queues'])}\n"
        f"-- node {node['name']}: {place(node)}\n"
        f"{parts}\nORDER BY stored_at DESC LIMIT {last};"
    )


def newest(queue: PlannedQueue, where: str, last: int) -> str:
    """Return the SELECT of a queue's newest messages. Those below `low` are past retention."""
    number = queue["queue"]
    return (  # shown to people, who run it with an account of their own
        f"SELECT * FROM (SELECT {number} AS queue, {COLUMNS}\n"  # noqa: S608
        f"  FROM {queue['table']} AS m\n"
        f" WHERE m.msg_offset >= (SELECT low FROM queue_head WHERE queue_id = {number}){where}\n"
        f" ORDER BY m.msg_offset DESC LIMIT {last}) AS queue_{number}"
    )


def place(node: PlannedNode) -> str:
    """Return where a node is, without an account."""
    if node["engine"] == "sqlite":
        return f"SQLite file {node['database']}"
    return f"{node['host']}:{node['port']}, database {node['database']}"


def quoted(text: str) -> str:
    r"""Return a string literal, the same in MySQL, MariaDB and SQLite. Raises OptionError
    for a backslash.

    >>> quoted("it's")
    "'it''s'"
    """
    if "\\" in text or len(text) > LONGEST_KEY:
        raise OptionError(
            f"--key must have at most {LONGEST_KEY} characters and no backslash, not {text!r}"
        )
    return "'" + text.replace("'", "''") + "'"


def run(args: argparse.Namespace, brokers: Brokers) -> int:
    """Show the statements of a topic."""
    plan = brokers.admin().read_plan(args.name)
    found = statements(plan, last=args.last, key=args.key, queues=args.queue or ())
    show("\n\n".join(found) + "\n")
    return 0


VERB = Verb(
    "sql",
    "show the SELECT statements for a topic's messages, for a database client",
    (
        NAME,
        Argument("--key KEY", "only messages with this key; scans the tables"),
        QUEUES,
        Argument(
            "--last N", "newest messages (default 10)", type=whole(1, 1_000_000), default=10
        ),
    ),
    run,
)
