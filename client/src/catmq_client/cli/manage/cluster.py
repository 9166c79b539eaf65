"""catmq nodes, catmq brokers, catmq broker, catmq quota"""

from __future__ import annotations

import argparse
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.cli.arguments import whole
from catmq_client.cli.connection import Brokers
from catmq_client.cli.forms import Paint
from catmq_client.cli.output import Columns, at, facts, fields
from catmq_client.cli.verbs import NAME, Argument, Noun, Verb, action, detail, listing
from catmq_client.cli.wait import waited
from catmq_client.errors import OptionError

NODE: Columns = {
    **fields("name kind engine state dedicated queues"),
    "WHERE": lambda n: (
        f"{n['host']}:{n['port']}/{n['database']}" if n["host"] else n["database"]
    ),
}
BROKER: Columns = {
    **fields("name url state alive"),
    "LAST HEARD": at("last_seen_at_ms"),
    "VERSION": "version",
}
NODES = listing(
    "nodes",
    "list the nodes, the databases that store messages",
    (),
    lambda admin, _: admin.nodes(),
    columns=NODE,
)
LISTED = listing(
    "brokers",
    "list the brokers that clients may use",
    (),
    lambda admin, _: admin.brokers(),
    columns=BROKER,
)


def list_brokers(args: argparse.Namespace, brokers: Brokers) -> int:
    """List the brokers; with `--wait` as soon as one of them answers."""
    if args.wait and not waited(
        lambda: answers(brokers.admin()), goes_on="no broker has answered"
    ):
        return 1
    return LISTED.run(args, brokers)


def answers(admin: Admin) -> str:
    """Ask a broker, and return nothing more to be done if it answers."""
    list(admin.brokers())
    return ""


UNTIL = Argument("--wait", "wait until a broker answers")
BROKERS = Verb(LISTED.name, LISTED.help, (UNTIL, *LISTED.arguments), list_brokers)
BROKER_NOUN = Noun(
    "broker",
    "drain, enable, forget brokers",
    (
        action(
            "drain",
            "drain a broker; it completes running requests, and clients switch to others",
            (NAME,),
            lambda admin, args: admin.change_broker(args.name, state="out"),
            done="broker {name} takes no more work; give it some again: catmq broker enable {name}",
            old="out",
        ),
        action(
            "enable",
            "enable a drained broker",
            (NAME,),
            lambda admin, args: admin.change_broker(args.name, state="in"),
            done="broker {name} takes work",
            old="in",
        ),
        action(
            "forget",
            "remove a broker that no longer runs from the list",
            (NAME,),
            lambda admin, args: admin.forget_broker(args.name),
            done="broker {name} forgotten; it comes back by itself when it is started",
            asks="broker",
        ),
    ),
)

QUOTAS = {"messages": "max_messages_per_s", "bytes": "max_bytes_per_s"}
QUOTA_OPTIONS = (
    Argument("--messages N", "maximum messages per second", type=whole(1)),
    Argument("--bytes N", "maximum bytes of bodies per second", type=whole(1)),
    Argument("--none", "remove the quotas that are not given"),
)


def quota(kind: str, text: str) -> Verb:
    """Return the verb that sets what is given, and shows what holds then."""

    def call(admin: Admin, args: argparse.Namespace) -> dict[str, Any]:
        given = {field: getattr(args, option) for option, field in QUOTAS.items()}
        changes = {
            field: value for field, value in given.items() if value is not None or args.none
        }
        change, read = {
            "topic": (admin.change_topic, admin.topic),
            "key": (admin.change_key, admin.key),
        }[kind]
        found: Any = change(args.name, **changes) if changes else read(args.name)
        if QUOTAS["messages"] not in found:
            raise OptionError("this broker is older and has no quotas")
        return {"name": found["name"], **{field: found[field] for field in given}}

    def page(found: Any, colours: Paint) -> str:
        shown = {
            option: "no limit" if found[field] is None else found[field]
            for option, field in QUOTAS.items()
        }
        return facts(
            {**found, **shown},
            {kind: "name", "messages/s": "messages", "bytes/s": "bytes"},
            colours,
        )

    return detail(
        kind,
        f"show or set {text}, for all brokers together",
        (NAME, *QUOTA_OPTIONS),
        call,
        page=page,
    )


QUOTA = Noun(
    "quota",
    "show and set quotas of topics and API keys",
    (
        quota("topic", "the maximum rate of sends to a topic"),
        quota("key", "the maximum rate of sends with an API key"),
    ),
    old="limit",
)
