"""manage.py grants: prints the GRANT statements of an account."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from metadata.rules.grants import ACCOUNTS, FLAVOURS, Grant, grant_statements


class Command(BaseCommand):
    """Needs no database: the accounts of a new installation are made before it is there."""

    requires_system_checks: list[str] = []  # noqa: RUF012  Django's own declaration
    help = (
        "Prints the GRANT statements with exactly the rights that an account needs on "
        "MariaDB and MySQL. "
        "Connects to nothing. Statements that are marked as optional may be omitted."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("account", choices=ACCOUNTS, help="; ".join(_helps()))
        parser.add_argument(
            "--database", default="catmq", help="name of the database (default %(default)s)"
        )
        parser.add_argument(
            "--user", default="catmq", help="name of the account (default %(default)s)"
        )
        parser.add_argument(
            "--host", default="%", help="host of the account (default: any)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        where = {
            "database": options["database"],
            "username": options["user"],
            "host": options["host"],
        }
        _, needed = ACCOUNTS[options["account"]]
        self.stdout.write("\n".join(shown(needed, where)))


def _helps() -> list[str]:
    return [
        f"{name}: {purpose.replace('%', '%%')}" for name, (purpose, _) in ACCOUNTS.items()
    ]


def shown(needed: tuple[Grant, ...], where: dict[str, str]) -> list[str]:
    """The statements for each flavour, or once if they do not differ."""
    by_flavour = {flavour: _of(needed, flavour, where) for flavour in FLAVOURS}
    first, *others = by_flavour.values()
    if all(one == first for one in others):
        return first
    return [
        line
        for flavour, lines in by_flavour.items()
        for line in (f"-- {FLAVOURS[flavour]}", *lines)
    ]


def _of(needed: tuple[Grant, ...], flavour: str, where: dict[str, str]) -> list[str]:
    required = [one for one in needed if not one.optional]
    lines = grant_statements(required, flavour=flavour, **where)
    for one in needed:
        if one.optional:
            lines += [
                f"-- optional: {one.why}",
                *grant_statements([one], flavour=flavour, **where),
            ]
    return lines
