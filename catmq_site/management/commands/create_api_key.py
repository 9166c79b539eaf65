"""manage.py create_api_key: creates an API key for a client."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand
from metadata.errors import Invalid
from metadata.users import api_keys


class Command(CatmqCommand):
    help = (
        "Creates an API key and prints it on stdout. Only a digest is stored, so the key "
        "cannot be shown again. Example: create_api_key shop --right 'produce=orders*' "
        "--right 'consume=orders*,billing'"
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument(
            "--right",
            action="append",
            required=True,
            metavar="RIGHT=PATTERN[,PATTERN]",
            help="produce, consume, browse, manage or admin, on matching names (admin=* "
            "has all rights)",
        )

    def run(self, **options: Any) -> None:
        _, plaintext = api_keys.create(
            name=options["name"], rights=parse_rights(options["right"]), actor=self.actor
        )
        # Alone on stdout, so that a script can capture it.
        self.stdout.write(plaintext)


def parse_rights(rights: list[str]) -> dict[str, list[str]]:
    """Return patterns by right, of texts such as produce=a*,b. Raises Invalid."""
    patterns_of_right: dict[str, list[str]] = {}
    for text in rights:
        right, equals, patterns = text.partition("=")
        if not equals:
            raise Invalid.field("right", f"{text!r} must look like produce=orders*")
        patterns_of_right.setdefault(right.strip(), []).extend(
            pattern.strip() for pattern in patterns.split(",") if pattern.strip()
        )
    return patterns_of_right
