"""manage.py register_node: makes a database known as a place for messages."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from catmq_site.management.base import CatmqCommand, variable_of_node
from catmq_site.management.outcomes import findings
from messagestore.nodes import preflight, registry
from metadata.config import ConfigError, parse_database_url
from metadata.errors import Invalid


class Command(CatmqCommand):
    help = (
        "Registers a database as a node. The database must exist, and its account must "
        "have all rights on "
        "it. To keep the password out of the process list, omit URL and set the "
        "environment variable "
        "CATMQ_NODE_<NAME>_URL."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument(
            "url",
            nargs="?",
            help="mysql://user:password@host:3306/database or sqlite:FILE; a final "
            "?tls=off|on|verify[&ca=FILE] sets encryption (default: on, if the server is "
            "on another machine and offers it)",
        )
        parser.add_argument(
            "--kind",
            choices=("normal", "failure"),
            default="normal",
            help="normal: topics; failure: retries and dead letters",
        )
        parser.add_argument(
            "--dedicated", action="store_true", help="use it for new queues only when named"
        )
        parser.add_argument(
            "--capacity-gb",
            type=int,
            help="disk space for its tables; enables the guard against a full disk",
        )
        parser.add_argument(
            "--unsafe",
            action="store_true",
            help="accept a server that loses messages in a crash",
        )
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="only test the database: connection, version, rights, clock, durability "
            "and contents",
        )

    def run(self, **options: Any) -> None:
        given = {
            name: options[name]
            for name in ("name", "kind", "dedicated", "capacity_gb", "unsafe")
        }
        given |= where(options["name"], options["url"])
        if options["dry_run"]:
            self._examine(given)
            return
        made = registry.register(actor=self.actor, **given)
        encrypted = f", with tls {made.tls}" if made.engine == "mysql" else ""
        self.stdout.write(f"Node {made.name} is registered{encrypted}.")

    def _examine(self, given: dict[str, Any]) -> None:
        found = preflight.examine(actor=self.actor, **given)
        self.stdout.write("\n".join(findings(found)))
        if not found.passed:
            raise Invalid(f"{given['name']} cannot be registered. Nothing was changed.")


def where(name: str, url: str | None) -> dict[str, Any]:
    """The arguments of `register` that a node's URL stands for. Raises Invalid."""
    variable = variable_of_node(name, "URL")
    url = url or os.environ.get(variable)
    if not url:
        raise Invalid.field("url", f"give it, or set {variable}")
    if url.startswith("sqlite:"):
        path = Path(url.removeprefix("sqlite:"))
        return {"engine": "sqlite", "database": str(path)}
    try:
        parts = parse_database_url(url)
    except ConfigError as error:
        raise Invalid.field("url", str(error)) from None
    account: dict[str, Any] = {"username": parts.username, "password": parts.password}
    if parts.encryption.mode:
        account |= {"tls": parts.encryption.mode, "tls_ca": parts.encryption.ca}
    return {
        "engine": "mysql",
        "host": parts.host,
        "port": parts.port,
        "database": parts.name,
        **account,
    }
