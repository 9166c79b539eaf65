"""catmq group create | list | show | set | delete | stop | start | …, catmq subscribe, catmq unsubscribe"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.admin.group_shapes import Group
from catmq_client.cli.arguments import or_none, whole
from catmq_client.cli.confirm import confirmed
from catmq_client.cli.connection import Brokers
from catmq_client.cli.manage import rebalances
from catmq_client.cli.output import add_output, duration, facts, json_line, moment, note, show, table, write
from catmq_client.errors import NotFound, OptionError

SESSION_MS = whole(2_000, 300_000)
SETTINGS = ("allow_addresses", "deny_addresses", "max_active_members", "session_timeout_ms", "description")


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq group`, `subscribe` and `unsubscribe`."""
    noun = commands.add_parser(
        "group", help="create, list, show, change, stop, start, rebalance, delete groups"
    )
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
    deleter.add_argument("--yes", action="store_true", help="do not ask; needed where no terminal is")
    deleter.set_defaults(command=delete_group)
    add_set(verbs, common)
    add_switches(verbs, common)
    rebalances.add_verbs(verbs, common)
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
        type=SESSION_MS,
        metavar="MS",
        help="a member silent for so long loses its queues (default 15000)",
    )
    creator.add_argument("--description", metavar="TEXT", help="what the group is for")
    creator.set_defaults(command=create_group)


def add_set(verbs: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq group set`; what is not given is absent."""
    setter = named(verbs, common, "set", "change a group's settings")
    for option, dest, metavar, kind, text in (
        ("--allow", SETTINGS[0], "ADDRESSES", str, "only members at these addresses or networks get queues"),
        (
            "--deny",
            SETTINGS[1],
            "ADDRESSES",
            str,
            "members at these get none; '' for no limit, as with --allow",
        ),
        ("--max-active", SETTINGS[2], "N|none", or_none(whole(1)), "so many get queues, others stand by"),
        (
            "--session-timeout-ms",
            SETTINGS[3],
            "MS",
            SESSION_MS,
            "a member silent for so long loses its queues",
        ),
        ("--description", SETTINGS[4], "TEXT", str, "what the group is for"),
    ):
        setter.add_argument(
            option, dest=dest, metavar=metavar, type=kind, default=argparse.SUPPRESS, help=text
        )
    setter.set_defaults(command=set_group)


def add_switches(verbs: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq group stop` and `start`."""
    for verb, stopped, text in (
        ("stop", True, "deliver nothing to a group, or of a topic or queue to it, until that is started"),
        ("start", False, "deliver again what was stopped"),
    ):
        made = named(verbs, common, verb, text)
        made.add_argument("--topic", metavar="TOPIC", help="only this topic")
        made.add_argument(
            "--queue",
            type=whole(1),
            action="append",
            metavar="QUEUE",
            help="only this queue (may be repeated)",
        )
        made.set_defaults(command=switch_group, stopped=stopped)


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
        else:
            made.add_argument("--yes", action="store_true", help="do not ask; needed where no terminal is")
        made.set_defaults(command=command)


def create_group(args: argparse.Namespace, brokers: Brokers) -> int:
    """Creates a group."""
    group = brokers.admin().create_group(
        args.name, mode=args.mode, session_timeout_ms=args.session_timeout_ms, description=args.description
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
                ("allowed addresses", group.get("allow_addresses") or "all"),
                ("denied addresses", group.get("deny_addresses")),
                ("active members", limit_of(group)),
                ("description", group.get("description")),
                ("generation", group["generation"]),
                ("created", moment(group.get("created_at_ms"))),
            ]
        )
    )
    show("\n" + subscriptions_of(group) + "\n" + members_of(group))
    return 0


def subscriptions_of(group: Group) -> str:
    """Return a group's subscriptions as a table."""
    rows = [
        (s["topic"], s["state"], s["start"], s["stopped"], listed(s.get("stopped_queues", ())))
        for s in group["subscriptions"]
    ]
    return table(["TOPIC", "STATE", "FROM", "STOPPED", "STOPPED QUEUES"], rows)


def limit_of(group: Group) -> str:
    """Return how many members may own queues, as text."""
    most = group.get("max_active_members")
    return "all" if most is None else f"at most {most}"


def listed(queues: Iterable[int]) -> str:
    """Ids of queues, in a cell."""
    return " ".join(map(str, queues))


def members_of(group: Group) -> str:
    """Return the members of a group as a table."""
    rows = [
        (
            member["name"],
            member["address"],
            member["sdk"],
            moment(member["joined_at_ms"]),
            duration(member["heartbeat_age_ms"]),
            member.get("active"),
            listed(member["queues"]),
        )
        for member in group["members"]
    ]
    return table(["MEMBER", "ADDRESS", "SDK", "JOINED", "LAST HEARD", "ACTIVE", "QUEUES"], rows)


def delete_group(args: argparse.Namespace, brokers: Brokers) -> int:
    """Deletes a group, after asking at a terminal."""
    if not confirmed("group", args.name, yes=args.yes):
        return 1
    brokers.admin().delete_group(args.name)
    note(f"group {args.name} deleted")
    return 0


def set_group(args: argparse.Namespace, brokers: Brokers) -> int:
    """Changes the settings that were given. Raises OptionError for none."""
    given = {name: getattr(args, name) for name in SETTINGS if hasattr(args, name)}
    if not given:
        raise OptionError(
            "nothing to set: give --allow, --deny, --max-active, --session-timeout-ms or --description"
        )
    brokers.admin().change_group(args.name, **given)
    told = ", ".join(f"{name}={'none' if value is None else repr(value)}" for name, value in given.items())
    note(f"group {args.name}: {told}")
    return 0


def switch_group(args: argparse.Namespace, brokers: Brokers) -> int:
    """Stops or starts delivery to a group: all of it, of a topic, or of queues."""
    admin, done = brokers.admin(), "stopped" if args.stopped else "started"
    if args.queue:
        for topic, queues in topics_of(args, admin).items():
            switch_queues(admin, args, topic, queues)
        return 0
    if args.topic:
        admin.change_subscription(args.name, args.topic, stopped=args.stopped)
        what, only = f"group {args.name}: topic {args.topic}", f" --topic {args.topic}"
    else:
        admin.change_group(args.name, stopped=args.stopped)
        what, only = f"group {args.name}", ""
    note(f"{what} {done}" + (f"; deliver again: catmq group start {args.name}{only}" if args.stopped else ""))
    return 0


def topics_of(args: argparse.Namespace, admin: Admin) -> dict[str, set[int]]:
    """The queues by topic. Raises NotFound for one that the group does not read."""
    if args.topic:
        return {args.topic: set(args.queue)}
    read = {row["queue"]: row["topic"] for row in admin.lag(args.name)["queues"]}
    found: dict[str, set[int]] = {}
    for queue in args.queue:
        if queue not in read:
            known = ", ".join(map(str, sorted(read))) or "none"
            raise NotFound(f"queue {queue} is not read by group {args.name}; the queues that are: {known}")
        found.setdefault(read[queue], set()).add(queue)
    return found


def switch_queues(admin: Admin, args: argparse.Namespace, topic: str, queues: set[int]) -> None:
    """Stops or starts queues of one topic; the others stay as they are."""
    now = admin.subscription(args.name, topic)
    before = set(now["stopped_queues"])
    after = before | queues if args.stopped else before - queues
    if after != before:
        admin.change_subscription(args.name, topic, stopped_queues=sorted(after))
    for queue in sorted(queues):
        if args.stopped:
            done = "was stopped already" if queue in before else "stopped"
        else:
            done = "started" if queue in before else "was not stopped"
        note(f"group {args.name}: queue {queue} of {topic} {done}")
    if now["stopped"] and not args.stopped:
        note(f"all of {topic} is stopped, too: catmq group start {args.name} --topic {topic}")


def subscribe(args: argparse.Namespace, brokers: Brokers) -> int:
    """Subscribes a group to a topic."""
    made = brokers.admin().subscribe(args.group, args.topic, start=args.start)
    note(f"group {made['group']} reads {made['topic']} from {made['start']}")
    return 0


def unsubscribe(args: argparse.Namespace, brokers: Brokers) -> int:
    """Ends a subscription, after asking at a terminal."""
    if not confirmed(f"the subscription of group {args.group} to topic", args.topic, yes=args.yes):
        return 1
    brokers.admin().unsubscribe(args.group, args.topic)
    note(f"group {args.group} no longer reads {args.topic}")
    return 0
