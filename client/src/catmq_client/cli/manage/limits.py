"""catmq limit topic | key: how much may be sent in a second."""

from __future__ import annotations

import argparse
from typing import Any

from catmq_client.cli.arguments import whole
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import add_output, facts, json_line, show, write
from catmq_client.errors import OptionError

WHAT = {
    "topic": "what a topic takes in a second",
    "key": "what an API key may send in a second",
}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq limit`."""
    noun = commands.add_parser("limit", help="how much topics take, and API keys may send, in a second")
    verbs = noun.add_subparsers(metavar="VERB", required=True)
    for kind, text in WHAT.items():
        made = verbs.add_parser(kind, parents=[common], help=f"show or set {text}, through all brokers")
        made.add_argument("name", metavar="NAME")
        made.add_argument("--messages", type=whole(1), metavar="N", help="at most N messages a second")
        made.add_argument("--bytes", type=whole(1), metavar="N", help="at most N bytes of bodies a second")
        made.add_argument("--none", action="store_true", help="take the limits away that are not given here")
        add_output(made, "table")
        made.set_defaults(command=limit, kind=kind)


def limit(args: argparse.Namespace, brokers: Brokers) -> int:
    """Sets what is given, and shows what holds then."""
    given = {"max_messages_per_s": args.messages, "max_bytes_per_s": args.bytes}
    changes = {name: value for name, value in given.items() if value is not None or args.none}
    admin = brokers.admin()
    found: Any
    if args.kind == "topic":
        found = admin.change_topic(args.name, **changes) if changes else admin.topic(args.name)
    else:
        found = admin.change_key(args.name, **changes) if changes else admin.key(args.name)
    if "max_messages_per_s" not in found:
        raise OptionError("this broker is older: it knows no limits")
    shown = {"name": found["name"], **{name: found[name] for name in given}}
    if args.output == "json":
        write(json_line(shown))
    else:
        show(facts([(args.kind, args.name), *((unit(name), value(shown[name])) for name in given)]))
    return 0


def unit(name: str) -> str:
    """`max_messages_per_s` as a heading."""
    return name.removeprefix("max_").replace("_per_", "/")


def value(number: int | None) -> str:
    """A limit for people."""
    return "no limit" if number is None else str(number)
