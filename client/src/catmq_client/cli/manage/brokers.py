"""catmq brokers, catmq broker out | in | forget"""

from __future__ import annotations

import argparse
from typing import Any

from catmq_client.cli.confirm import confirmed
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import add_output, json_line, moment, note, show, table, write


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq brokers` and `catmq broker`."""
    lister = commands.add_parser("brokers", parents=[common], help="the brokers that clients may use")
    add_output(lister, "table")
    lister.set_defaults(command=list_brokers)
    noun = commands.add_parser("broker", help="pull a broker out or in, forget one")
    verbs = noun.add_subparsers(metavar="VERB", required=True)
    for verb, text, command in (
        ("out", "give a broker no more work: it ends what runs, and clients go to others", pull_out),
        ("in", "give a broker work again", pull_in),
        ("forget", "take a broker that no longer runs off the list", forget),
    ):
        made = verbs.add_parser(verb, parents=[common], help=text)
        made.add_argument("name", metavar="NAME")
        if command is forget:
            made.add_argument("--yes", action="store_true", help="do not ask; needed where no terminal is")
        made.set_defaults(command=command)


def list_brokers(args: argparse.Namespace, brokers: Brokers) -> int:
    """Lists brokers, as a table or one object a line."""
    rows = brokers.admin().brokers()
    if args.output == "json":
        for row in rows:
            write(json_line(row))
        return 0
    show(
        table(
            ["NAME", "URL", "STATE", "ALIVE", "LAST HEARD", "VERSION"],
            [
                (b["name"], b["url"], b["state"], b["alive"], moment(b["last_seen_at_ms"]), b["version"])
                for b in rows
            ],
        )
    )
    return 0


def pull_out(args: argparse.Namespace, brokers: Brokers) -> int:
    """Pulls a broker out."""
    brokers.admin().change_broker(args.name, state="out")
    note(f"broker {args.name} takes no more work; give it some again: catmq broker in {args.name}")
    return 0


def pull_in(args: argparse.Namespace, brokers: Brokers) -> int:
    """Pulls a broker in."""
    brokers.admin().change_broker(args.name, state="in")
    note(f"broker {args.name} takes work")
    return 0


def forget(args: argparse.Namespace, brokers: Brokers) -> int:
    """Forgets a broker, after asking at a terminal."""
    if not confirmed("broker", args.name, yes=args.yes):
        return 1
    brokers.admin().forget_broker(args.name)
    note(f"broker {args.name} forgotten; it comes back by itself when it is started")
    return 0
