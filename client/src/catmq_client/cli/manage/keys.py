"""catmq key: API keys and their rights."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from catmq_client.admin.shapes import Key
from catmq_client.cli.arguments import argument_error, whole_number
from catmq_client.cli.connection import Brokers
from catmq_client.cli.forms import Paint, is_table
from catmq_client.cli.output import (
    Columns,
    field_columns,
    format_facts,
    note,
    print_row,
    show,
    time_column,
)
from catmq_client.cli.verbs import (
    NAME,
    TABLE,
    Argument,
    Noun,
    Verb,
    action,
    detail,
    limit,
    listing,
    search,
)


def parse_right(text: str) -> tuple[str, list[str]]:
    """Return a right and its name patterns.

    >>> parse_right("consume=orders*, billing")
    ('consume', ['orders*', 'billing'])
    """
    right, _, patterns = text.partition("=")
    names = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    if not right.strip() or not names:
        raise argument_error(f"{text!r}: give RIGHT=PATTERN[,PATTERN]")
    return right.strip(), names


def format_rights(rights: Mapping[str, Sequence[str]]) -> str:
    """Return rights as text, in the form that --right takes.

    >>> format_rights({"produce": ["orders*"], "consume": ["orders*", "billing"]})
    'produce=orders* consume=orders*,billing'
    """
    return " ".join(f"{right}={','.join(patterns)}" for right, patterns in rights.items())


def create_key(args: argparse.Namespace, brokers: Brokers) -> int:
    """Create a key and print its text, for the only time."""
    rights: dict[str, list[str]] = {}
    for right, patterns in args.right:
        rights.setdefault(right, []).extend(patterns)
    key = brokers.admin().create_key(
        args.name,
        rights=rights,
        max_messages_per_s=args.messages,
        max_bytes_per_s=args.bytes,
    )
    note(f"key {args.name} created; it is not shown again")
    # The key stands alone on standard output, so that a script can capture it.
    if is_table(args.output):
        show(f"{key['api_key']}\n")
    else:
        print_row(key, args.output)
    return 0


def show_key(key: Key, colours: Paint) -> str:
    """Return a key as names and values."""
    limits = {
        name: "no limit" if value is None else value
        for name, value in (
            ("messages", key["max_messages_per_s"]),
            ("bytes", key["max_bytes_per_s"]),
        )
    }
    return format_facts(
        {**key, **limits, "rights": format_rights(key["rights"])},
        {
            "key": "name",
            "rights": "rights",
            "messages/s": "messages",
            "bytes/s": "bytes",
            "created": time_column("created_at_ms"),
        },
        colours,
    )


KEYS: Columns = {
    **field_columns("name"),
    "RIGHTS": lambda key: format_rights(key["rights"]),
    "CREATED": time_column("created_at_ms"),
}
RIGHT = Argument(
    "--right RIGHT=PATTERN[,PATTERN]",
    "produce, consume, browse, manage or admin, on topics and groups with matching names "
    "(repeatable)",
    type=parse_right,
    action="append",
    required=True,
)
NOUN = Noun(
    "key",
    "create, list and revoke API keys",
    (
        Verb(
            "create",
            "create an API key and print it; it cannot be shown again",
            (
                NAME,
                RIGHT,
                Argument(
                    "--messages N", "maximum messages per second", type=whole_number(1)
                ),
                Argument(
                    "--bytes N", "maximum bytes of bodies per second", type=whole_number(1)
                ),
                TABLE,
            ),
            create_key,
        ),
        listing(
            "list",
            "list API keys with their rights",
            (search("keys"), limit(1_000)),
            lambda admin, args: admin.keys(search=args.search),
            columns=KEYS,
        ),
        detail(
            "show",
            "show the rights and quotas of an API key",
            (NAME,),
            lambda admin, args: admin.key(args.name),
            page=show_key,
        ),
        action(
            "revoke",
            "delete an API key; brokers refuse it within a second",
            (NAME,),
            lambda admin, args: admin.delete_key(args.name),
            done="key {name} revoked",
            asks="key",
        ),
    ),
)
