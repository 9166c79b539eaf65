"""manage.py grants: prints the GRANT statements of an account."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from metadata.rules.grants import ACCOUNTS, FLAVOURS, Grant, grant_statements


class Command(BaseCommand):
    """A command without a database: the accounts are created before the database exists."""

    requires_system_checks: list[str] = []  # noqa: RUF012  Django's own declaration
    help = (
        "Prints the GRANT statements with exactly the rights that an account needs on "
        "MariaDB and MySQL. Connects to nothing. Statements that are marked as optional "
        "may be omitted."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        # argparse takes a % in a help text for a format.
        helps = [
            f"{name}: {purpose.replace('%', '%%')}"
            for name, (purpose, _) in ACCOUNTS.items()
        ]
        parser.add_argument("account", choices=ACCOUNTS, help="; ".join(helps))
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
        account = {
            "database": options["database"],
            "username": options["user"],
            "host": options["host"],
        }
        _, grants = ACCOUNTS[options["account"]]
        self.stdout.write("\n".join(format_statements(grants, account)))


def format_statements(grants: tuple[Grant, ...], account: dict[str, str]) -> list[str]:
    """Return the statements by flavour, or once if the flavours do not differ."""
    by_flavour = {
        flavour: _statements_for(grants, flavour, account) for flavour in FLAVOURS
    }
    first_lines, *other_lines = by_flavour.values()
    if all(other == first_lines for other in other_lines):
        return first_lines
    return [
        line
        for flavour, lines in by_flavour.items()
        for line in (f"-- {FLAVOURS[flavour]}", *(lines or ["-- no further right"]))
    ]


def _statements_for(
    grants: tuple[Grant, ...], flavour: str, account: dict[str, str]
) -> list[str]:
    required = [grant for grant in grants if not grant.optional]
    lines = grant_statements(required, flavour=flavour, **account)
    for grant in grants:
        if grant.optional:
            lines += [
                f"-- optional: {grant.why}",
                *grant_statements([grant], flavour=flavour, **account),
            ]
    return lines
