"""catmq group create | list | show | delete | stop | start, catmq subscribe, catmq unsubscribe"""

from __future__ import annotations

import argparse
from typing import Any

from catmq_client.admin import Group
from catmq_client.cli.arguments import whole
from catmq_client.cli.brokers import Brokers
from catmq_client.cli.confirm import confirmed
from catmq_client.cli.output import add_output, duration, facts, json_line, moment, note, show, table, write


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq group`, `subscribe` and `unsubscribe`."""
    noun = commands.add_parser("group", help="create, list, show, delete, stop, start consumer groups")
    verbs = noun.add_subparsers(metavar="VERB", required=True)
    add_create(verbs, common)
    lister = verbs.add_parser("list", parents=[common], help="all groups")
    lister.add_argument("--search", metavar="TEXT", help="only groups whose name contains TEXT")
    add_output(lister, "table")
    lister.set_defaults(command=list_groups)
    shower = named(verbs, common, "show", "one group with its subscriptions and members")
    add_output(shower, "table")
    shower.set_defaults(command=show_group)
    deleter = named(verbs, common, "delete", "delete a group and its positions")
    deleter.add_argument("--yes", action="store_true", help="do not ask (only a terminal is asked)")
    deleter.set_defaults(command=delete_group)
    named(verbs, common, "stop", "deliver nothing to a group until it is started").set_defaults(
        command=stop_group
    )
    named(verbs, common, "start", "deliver to a stopped group again").set_defaults(command=start_group)
    add_subscriptions(commands, common)


def named(verbs: Any, common: argparse.ArgumentParser, verb: str, text: str) -> argparse.ArgumentParser:
    """A verb about one group."""
    made: argparse.ArgumentParser = verbs.add_parser(verb, parents=[common], help=text)
    made.add_argument("name", metavar="NAME")
    return made


def add_create(verbs: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq group create`."""
    creator = named(verbs, common, "create", "create a group")
    creator.add_argument(
        "--mode", choices=("clustering", "broadcasting"), help="share the queues (default) or all to each"
    )
    creator.add_argument(
        "--session-timeout-ms",
        type=whole(2_000, 300_000),
        metavar="MS",
        help="a member silent for so long loses its queues (default 15000)",
    )
    creator.add_argument("--remark", metavar="TEXT", help="what the group is for")
    creator.set_defaults(command=create_group)


def add_subscriptions(commands: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq subscribe` and `unsubscribe`."""
    for verb, text, command in (
        ("subscribe", "let a group read a topic", subscribe),
        (
            "unsubscribe",
            "let a group read a topic no more, and forget the group's positions in the topic",
            unsubscribe,
        ),
    ):
        made = commands.add_parser(verb, parents=[common], help=text)
        made.add_argument("group", metavar="GROUP")
        made.add_argument("topic", metavar="TOPIC")
        if command is subscribe:
            made.add_argument(
                "--from",
                dest="start",
                choices=("earliest", "latest"),
                default="earliest",
                help="where reading begins",
            )
        made.set_defaults(command=command)


def create_group(args: argparse.Namespace, brokers: Brokers) -> int:
    """Creates a group."""
    group = brokers.admin().create_group(
        args.name, mode=args.mode, session_timeout_ms=args.session_timeout_ms, remark=args.remark
    )
    note(f"group {group['name']} created; let it read a topic: catmq subscribe {group['name']} TOPIC")
    return 0


def list_groups(args: argparse.Namespace, brokers: Brokers) -> int:
    """Lists groups, as a table or one object a line."""
    rows = brokers.admin().groups(search=args.search)
    if args.output == "json":
        for row in rows:
            write(json_line(row))
        return 0
    show(
        table(
            ["NAME", "MODE", "STOPPED", "SESSION TIMEOUT", "CREATED"],
            [
                (
                    g["name"],
                    g["mode"],
                    g["stopped"],
                    duration(g["session_timeout_ms"]),
                    moment(g.get("created_at_ms")),
                )
                for g in rows
            ],
        )
    )
    return 0


def show_group(args: argparse.Namespace, brokers: Brokers) -> int:
    """Shows one group, what it reads and who is in it."""
    group = brokers.admin().group(args.name)
    if args.output == "json":
        write(json_line(group))
        return 0
    show(
        facts(
            [
                ("name", group["name"]),
                ("mode", group["mode"]),
                ("stopped", group["stopped"]),
                ("session timeout", duration(group["session_timeout_ms"])),
                ("generation", group["generation"]),
                ("created", moment(group.get("created_at_ms"))),
            ]
        )
    )
    show("\n" + subscriptions_of(group) + "\n" + members_of(group))
    return 0


def subscriptions_of(group: Group) -> str:
    """What a group reads, as a table."""
    rows = [(s["topic"], s["state"], s["start"], s["stopped"]) for s in group["subscriptions"]]
    return table(["TOPIC", "STATE", "FROM", "STOPPED"], rows)


def members_of(group: Group) -> str:
    """Who is in a group, as a table."""
    rows = [
        (
            member["name"],
            member["address"],
            member["sdk"],
            moment(member["joined_at_ms"]),
            duration(member["heartbeat_age_ms"]),
            " ".join(map(str, member["queues"])),
        )
        for member in group["members"]
    ]
    return table(["MEMBER", "ADDRESS", "SDK", "JOINED", "LAST HEARD", "QUEUES"], rows)


def delete_group(args: argparse.Namespace, brokers: Brokers) -> int:
    """Deletes a group, after asking at a terminal."""
    if not confirmed("group", args.name, yes=args.yes):
        return 1
    brokers.admin().delete_group(args.name)
    note(f"group {args.name} deleted")
    return 0


def stop_group(args: argparse.Namespace, brokers: Brokers) -> int:
    """Stops delivery to a group."""
    brokers.admin().change_group(args.name, stopped=True)
    note(f"group {args.name} stopped; deliver again: catmq group start {args.name}")
    return 0


def start_group(args: argparse.Namespace, brokers: Brokers) -> int:
    """Starts delivery to a group again."""
    brokers.admin().change_group(args.name, stopped=False)
    note(f"group {args.name} started")
    return 0


def subscribe(args: argparse.Namespace, brokers: Brokers) -> int:
    """Subscribes a group to a topic."""
    made = brokers.admin().subscribe(args.group, args.topic, start=args.start)
    note(f"group {made['group']} reads {made['topic']} from {made['start']}")
    return 0


def unsubscribe(args: argparse.Namespace, brokers: Brokers) -> int:
    """Ends a subscription."""
    brokers.admin().unsubscribe(args.group, args.topic)
    note(f"group {args.group} no longer reads {args.topic}")
    return 0
