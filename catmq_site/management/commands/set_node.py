"""manage.py set_node: changes the settings of a node, its accounts and its replica."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management import CommandError

from catmq_site.management.base import CatmqCommand, find_password
from catmq_site.management.commands.promote_node import parse_address
from messagestore.nodes import registry
from metadata.rules.addresses import is_list
from metadata.rules.nodes import NodeState
from metadata.rules.tls import MODES

OPTIONS = ("state", "capacity_gb", "host", "tls", "ca", "replica", "username", "reader")


class Command(CatmqCommand):
    help = (
        "Changes settings of a node. Brokers use them within a second, without a restart. An "
        "account and an encryption are used after a test connection. Passwords are read from the "
        "environment variables CATMQ_NODE_<NAME>_PASSWORD and CATMQ_NODE_<NAME>_READER_PASSWORD "
        "and stored encrypted."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument(
            "--state",
            choices=[*NodeState],
            help="read_only: no new messages; offline: nothing is read either, and the node "
            "need not answer",
        )
        parser.add_argument(
            "--capacity-gb", type=int, metavar="N", help="disk space for its tables"
        )
        parser.add_argument(
            "--tls",
            choices=[*MODES],
            help="encryption of connections to the node and its replica. "
            + "; ".join(MODES.values()),
        )
        parser.add_argument(
            "--ca",
            metavar="FILE",
            help="with --tls verify: certificates of CAs in PEM, at the same path on all brokers "
            "(default: those of the system)",
        )
        parser.add_argument(
            "--host",
            metavar="HOST:PORT,…",
            help="addresses of its server and of the servers that replicate it, in any order; "
            "the server that is written to now stays in the list",
        )
        parser.add_argument(
            "--replica",
            metavar="HOST:PORT",
            help="address of its replica, or several with commas, which have the same database "
            "and account: pulls are served from there while the node is down, and promote_node "
            "moves the node there; '' removes it",
        )
        parser.add_argument(
            "--username",
            metavar="USER",
            help="account that brokers use. Change the password in the database first, and keep "
            "the old account valid until all brokers use the new one (a second)",
        )
        parser.add_argument(
            "--reader",
            metavar="USER",
            help="account with which Spark jobs read the node. It needs SELECT on the node's "
            "database and no other right. Brokers disclose it only to keys with the right admin "
            "on *. '' removes it",
        )

    def run(self, **options: Any) -> None:
        node = options["node"]
        chosen = {name: options[name] for name in OPTIONS if options.get(name) is not None}
        if not chosen:
            raise CommandError(
                "Nothing to change. Give --state, --capacity-gb, --host, --tls, --replica, "
                "--username or --reader."
            )
        if chosen.get("username") == "":
            raise CommandError("--username needs an account.")
        if "ca" in chosen and "tls" not in chosen:
            raise CommandError("--ca needs --tls verify.")
        # State, capacity, TLS and replica change in a single update; each account needs a
        # test connection.
        settings: dict[str, Any] = {
            name: chosen[name] for name in OPTIONS[:3] if name in chosen
        }
        lines = []
        if settings:
            summary = ", ".join(f"{name} {value}" for name, value in settings.items())
            lines.append(f"Node {node} has {summary}.")
        if "tls" in chosen:
            settings |= {"tls": chosen["tls"], "tls_ca": chosen.get("ca", "")}
            lines.append(f"Node {node} is reached with tls {chosen['tls']}.")
        if "replica" in chosen:
            # A list has the port at each address.
            settings["replica_host"], settings["replica_port"] = (
                (chosen["replica"], None)
                if is_list(chosen["replica"])
                else parse_address(chosen["replica"])
            )
            condition = (
                f"is at {chosen['replica']}" if chosen["replica"] else "is forgotten"
            )
            lines.append(f"The replica of node {node} {condition}.")
        # Passwords are looked up before anything is changed.
        passwords = {
            name: find_password(node, chosen[name], variable)
            for name, variable in (("username", "PASSWORD"), ("reader", "READER_PASSWORD"))
            if name in chosen
        }
        if settings:
            registry.update(name=node, settings=settings, actor=self.actor)
        # Written before the accounts, whose test connection may fail.
        self.stdout.write("".join(f"{line}\n" for line in lines), ending="")
        if user := chosen.get("username"):
            registry.set_account(
                name=node, username=user, password=passwords["username"], actor=self.actor
            )
            self.stdout.write(f"Node {node} is now used with account {user}.")
        if "reader" in chosen:
            user = chosen["reader"]
            registry.set_reader(
                name=node, username=user, password=passwords["reader"], actor=self.actor
            )
            condition = f"is read by {user}" if user else "has no reader account"
            self.stdout.write(f"Node {node} {condition}.")
