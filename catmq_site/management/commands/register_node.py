"""manage.py register_node: registers a database as a node, which stores messages."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from catmq_site.management.base import CatmqCommand, node_variable, read_secret
from catmq_site.management.outcomes import describe_findings
from messagestore.nodes import preflight, registry
from metadata.config import ConfigError, parse_database_url
from metadata.errors import Invalid
from metadata.rules.nodes import Engine, NodeKind


class Command(CatmqCommand):
    help = (
        "Registers a database as a node. The database must exist, and its account must "
        "have all rights on it. To keep the password out of the process list, omit URL "
        "and set the environment variable CATMQ_NODE_<NAME>_URL, or CATMQ_NODE_<NAME>_URL_FILE "
        "to a file with it."
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
            choices=[*NodeKind],
            default=NodeKind.NORMAL,
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
        node_settings = {
            name: options[name]
            for name in ("name", "kind", "dedicated", "capacity_gb", "unsafe")
        }
        node_settings |= parse_node_url(options["name"], options["url"])
        if options["dry_run"]:
            result = preflight.examine(actor=self.actor, **node_settings)
            self.stdout.write("\n".join(describe_findings(result)))
            if not result.passed:
                raise Invalid(
                    f"{options['name']} cannot be registered. Nothing was changed."
                )
            return
        node = registry.register(actor=self.actor, **node_settings)
        encrypted = f", with tls {node.tls}" if node.engine == Engine.MYSQL else ""
        self.stdout.write(f"Node {node.name} is registered{encrypted}.")


def parse_node_url(name: str, url: str | None) -> dict[str, Any]:
    """Return the arguments of registry.register() that a node's URL means. Raises Invalid."""
    variable = node_variable(name, "URL")
    # The variable keeps the password out of the list of processes.
    url = url or read_secret(variable)
    if not url:
        raise Invalid.field("url", f"give it, or set {variable} or {variable}_FILE")
    if url.startswith("sqlite:"):
        path = Path(url.removeprefix("sqlite:"))
        return {"engine": Engine.SQLITE, "database": str(path)}
    try:
        database = parse_database_url(url)
    except ConfigError as error:
        raise Invalid.field("url", str(error)) from None
    account: dict[str, Any] = {"username": database.username, "password": database.password}
    if database.encryption.mode:
        account |= {"tls": database.encryption.mode, "tls_ca": database.encryption.ca}
    return {
        "engine": Engine.MYSQL,
        "host": database.host,
        "port": database.port,
        "database": database.name,
        **account,
    }
