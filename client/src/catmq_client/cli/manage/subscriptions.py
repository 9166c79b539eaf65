"""catmq subscription: the settings of a group's subscription to a topic, changed while it
reads.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.admin.shapes import TagMatches
from catmq_client.cli.declared import options
from catmq_client.cli.output import Columns, facts, fields, note
from catmq_client.cli.verbs import GROUP, TOPIC, Argument, Noun, detail, settings
from catmq_client.errors import Forbidden, NotFound, OptionError, Unavailable

SETTINGS = options("subscription")
FILTERS = ("tags", "headers")
FACTS: Columns = {
    **fields("group topic stopped"),
    "stopped queues": lambda row: ", ".join(map(str, row["stopped_queues"])),
    **{option.dest.replace("_", " "): option.dest for option in SETTINGS},
    "retry delays s": lambda row: joined(row.get("retry_delays_s")),
    "tags": lambda row: joined(row.get("tags")) or "all",
    "headers": lambda row: shown(row.get("headers") or {}) or "all",
}


def joined(value: object) -> object:
    """Return a list as text, anything else as it is."""
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def shown(headers: Mapping[str, Sequence[str]]) -> str:
    """Return a header filter as its options are written.

    >>> shown({"region": ["eu", "us"], "kind": ["order"]})
    'region=eu,us kind=order'
    """
    return " ".join(f"{name}={','.join(values)}" for name, values in headers.items())


def change(admin: Admin, args: argparse.Namespace, given: dict[str, Any]) -> object:
    """Change settings; a filter is tried first, with --dry-run only that."""
    filters = {name: value for name, value in given.items() if name in FILTERS}
    if args.dry_run:
        if filters != given:
            raise OptionError("--dry-run works only with --tags and --header")
        note(taken(admin.tag_matches(args.topic, **filters)))
        return False
    if any(filters.values()):
        try_filters(admin, args.topic, filters)
    return admin.change_subscription(args.group, args.topic, **given)


def try_filters(admin: Admin, topic: str, filters: dict[str, Any]) -> None:
    """Tell what filters would have taken lately, before they are set; without an answer
    they are set, too.
    """
    try:
        note(taken(admin.tag_matches(topic, **filters)))
    # no right to browse, an older broker, nodes away
    except (Forbidden, NotFound, Unavailable) as error:
        note(f"could not count messages that match the filter: {error}")


def taken(found: TagMatches) -> str:
    """Return the figures of a filter as a sentence.

    >>> taken({"looked_at": 9, "matching": 0, "away": []})
    'none of the last 9 messages would match: they are skipped and committed, not delivered'
    """
    away = (
        f" (not counted, because they do not answer: {', '.join(found['away'])})"
        if found["away"]
        else ""
    )
    if not found["looked_at"]:
        return f"no messages to test the filter with{away}"
    if not found["matching"]:
        passed = "they are skipped and committed, not delivered"
        return f"none of the last {found['looked_at']} messages would match{away}: {passed}"
    return (
        f"{found['matching']} of the last {found['looked_at']} messages would match{away}"
    )


NOUN = Noun(
    "subscription",
    "show and change the settings of a subscription",
    (
        detail(
            "show",
            "show the settings of a subscription",
            (GROUP, TOPIC),
            lambda admin, args: admin.subscription(args.group, args.topic),
            page=lambda found, colours: facts(found, FACTS, colours),
        ),
        settings(
            "change settings; running members apply them at once",
            (GROUP, TOPIC),
            SETTINGS,
            change,
            label="subscription of {group} to {topic}",
            flags=(
                Argument(
                    "--dry-run",
                    "only count how many of the last messages --tags and --header would match",
                ),
            ),
        ),
    ),
)
