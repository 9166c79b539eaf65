"""catmq topic create | list | show | set | delete; the rest of `catmq topic` is in queues.py"""

from __future__ import annotations

import argparse
from typing import Any

from catmq_client.admin.api import Topic
from catmq_client.cli.arguments import MAX_QUEUES, or_none, size, whole
from catmq_client.cli.confirm import confirmed
from catmq_client.cli.connection import Brokers
from catmq_client.cli.manage import queues
from catmq_client.cli.output import add_output, facts, json_line, moment, note, show, table, write
from catmq_client.errors import OptionError

# What `set` changes: setting, option, the form of its value, help
SETTINGS: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    (
        "retention_days",
        "--retention-days",
        {"metavar": "DAYS", "type": whole(1, 3650)},
        "days to keep messages",
    ),
    (
        "keep_unread_days",
        "--keep-unread-days",
        {"metavar": "DAYS", "type": whole(0, 3650)},
        "days to keep what an active group has not read; 0: no longer than the rest",
    ),
    (
        "retention_bytes",
        "--retention-bytes",
        {"metavar": "SIZE|none", "type": or_none(size(1 << 20, 1 << 60))},
        "keep no more than this, read or not, like 20GB; none: no limit by size",
    ),
    (
        "keyed",
        "--keyed",
        {"choices": ("strict", "available")},
        "a keyed send whose queue is down waits (strict) or goes elsewhere (available)",
    ),
    (
        "on_unknown",
        "--on-unknown",
        {"choices": ("fail", "resend")},
        "a send whose end is not known is an error (fail) or sent again, perhaps stored twice (resend)",
    ),
    ("description", "--description", {"metavar": "TEXT"}, "what the topic is for"),
)


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq topic`."""
    noun = commands.add_parser("topic", help="create, list, show, change, delete, expand, shrink topics")
    verbs = noun.add_subparsers(metavar="VERB", required=True)
    add_create(verbs, common)
    lister = verbs.add_parser("list", parents=[common], help="all topics")
    lister.add_argument("--search", metavar="TEXT", help="only topics whose name contains TEXT")
    add_output(lister, "table")
    lister.set_defaults(command=list_topics)
    shower = verbs.add_parser("show", parents=[common], help="one topic with its queues")
    shower.add_argument("name", metavar="NAME")
    add_output(shower, "table")
    shower.set_defaults(command=show_topic)
    deleter = verbs.add_parser(
        "delete", parents=[common], help="delete a topic; its tables are dropped after 3 days"
    )
    deleter.add_argument("name", metavar="NAME")
    deleter.add_argument("--yes", action="store_true", help="do not ask; needed where no terminal is")
    deleter.set_defaults(command=delete_topic)
    add_set(verbs, common)
    queues.add(verbs, common)


def add_set(verbs: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq topic set`; what is not given is absent."""
    setter = verbs.add_parser("set", parents=[common], help="change a topic's settings")
    setter.add_argument("name", metavar="NAME")
    for dest, option, form, text in SETTINGS:
        setter.add_argument(option, dest=dest, default=argparse.SUPPRESS, help=text, **form)
    setter.set_defaults(command=set_topic)


def add_create(verbs: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq topic create`."""
    creator = verbs.add_parser("create", parents=[common], help="create a topic")
    creator.add_argument("name", metavar="NAME")
    creator.add_argument(
        "--queues", type=whole(1, MAX_QUEUES), default=4, metavar="N", help="queues (default 4)"
    )
    creator.add_argument("--node", metavar="NODE", help="put all queues there (default: spread)")
    creator.add_argument(
        "--retention-days", type=whole(1), metavar="DAYS", help="days to keep messages (default 7)"
    )
    creator.add_argument(
        "--keyed",
        choices=("strict", "available"),
        help="a keyed send whose queue is down waits (strict, the default) or goes elsewhere (available)",
    )
    creator.add_argument("--description", metavar="TEXT", help="what the topic is for")
    creator.set_defaults(command=create_topic)


def create_topic(args: argparse.Namespace, brokers: Brokers) -> int:
    """Creates a topic."""
    topic = brokers.admin().create_topic(
        args.name,
        queues=args.queues,
        node=args.node,
        retention_days=args.retention_days,
        keyed=args.keyed,
        description=args.description,
    )
    note(f"topic {topic['name']} created: {len(topic['queues'])} queues")
    return 0


def list_topics(args: argparse.Namespace, brokers: Brokers) -> int:
    """Lists topics, as a table or one object a line."""
    rows = brokers.admin().topics(search=args.search)
    if args.output == "json":
        for row in rows:
            write(json_line(row))
        return 0
    show(
        table(
            ["NAME", "KIND", "STATE", "QUEUES", "KEYED", "DAYS", "CREATED"],
            [
                (t["name"], t["kind"], t["state"], t["queues"], t["keyed"], t["retention_days"], made(t))
                for t in rows
            ],
        )
    )
    return 0


def made(row: Any) -> str | None:
    """Return the time something was created, for a table."""
    return moment(row.get("created_at_ms"))


def show_topic(args: argparse.Namespace, brokers: Brokers) -> int:
    """Shows one topic and its queues."""
    topic = brokers.admin().topic(args.name)
    if args.output == "json":
        write(json_line(topic))
        return 0
    show(topic_facts(topic))
    show(
        "\n"
        + table(
            ["QUEUE", "NUMBER", "NODE", "STATE", "LOW", "HEAD", "MESSAGES"],
            [
                (
                    q["queue"],
                    q["number"],
                    q["node"],
                    q["state"],
                    q["low"],
                    q["head"],
                    stored(q["low"], q["head"]),
                )
                for q in topic["queues"]
            ],
        )
    )
    return 0


def stored(low: int | None, head: int | None) -> int | None:
    """Return the number of messages a queue holds; None: its node does not answer."""
    return None if low is None or head is None else head - low


def topic_facts(topic: Topic) -> str:
    """A topic's settings, one a line."""
    return facts(
        [
            ("name", topic["name"]),
            ("kind", topic["kind"]),
            ("state", topic["state"]),
            ("queues", len(topic["queues"])),
            ("keyed", topic["keyed"]),
            ("on unknown", topic["on_unknown"]),
            ("retention", f"{topic['retention_days']} days, unread {topic['keep_unread_days']} days"),
            ("retention bytes", topic["retention_bytes"]),
            ("messages/s", topic.get("max_messages_per_s")),
            ("bytes/s", topic.get("max_bytes_per_s")),
            ("owners", topic["owners"]),
            ("description", topic["description"]),
            ("created", made(topic)),
        ]
    )


def set_topic(args: argparse.Namespace, brokers: Brokers) -> int:
    """Changes the settings that were given. Raises OptionError for none."""
    given = {name: getattr(args, name) for name, *_ in SETTINGS if hasattr(args, name)}
    if not given:
        raise OptionError(f"nothing to set: give {', '.join(option for _, option, *_ in SETTINGS)}")
    brokers.admin().change_topic(args.name, **given)
    told = ", ".join(f"{name}={'none' if value is None else repr(value)}" for name, value in given.items())
    note(f"topic {args.name}: {told}")
    return 0


def delete_topic(args: argparse.Namespace, brokers: Brokers) -> int:
    """Deletes a topic, after asking at a terminal."""
    if not confirmed("topic", args.name, yes=args.yes):
        return 1
    brokers.admin().delete_topic(args.name)
    note(f"topic {args.name} deleted: its tables are dropped after 3 days")
    return 0
