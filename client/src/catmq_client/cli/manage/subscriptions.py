"""catmq subscription: settings of a group's subscription to a topic.

They may be changed while the group reads.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.admin.shapes import TagMatches
from catmq_client.cli.declared import options
from catmq_client.cli.output import Columns, field_columns, format_facts, note
from catmq_client.cli.verbs import GROUP, TOPIC, Argument, Noun, detail, settings
from catmq_client.errors import Forbidden, NotFound, OptionError, Unavailable

SETTINGS = options("subscription")
FILTERS = ("tags", "headers")
FACTS: Columns = {
    **field_columns("group topic stopped"),
    "stopped queues": lambda row: ", ".join(map(str, row["stopped_queues"])),
    **{option.dest.replace("_", " "): option.dest for option in SETTINGS},
    "retry delays s": lambda row: join_list(row.get("retry_delays_s")),
    "tags": lambda row: join_list(row.get("tags")) or "all",
    "headers": lambda row: format_headers(row.get("headers") or {}) or "all",
}


def join_list(value: object) -> object:
    """Return a list as text, any other value unchanged."""
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def format_headers(headers: Mapping[str, Sequence[str]]) -> str:
    """Return a header filter as its options are written.

    >>> format_headers({"region": ["eu", "us"], "kind": ["order"]})
    'region=eu,us kind=order'
    """
    return " ".join(f"{name}={','.join(values)}" for name, values in headers.items())


def change_settings(
    admin: Admin, args: argparse.Namespace, changes: dict[str, Any]
) -> object:
    """Change settings, after noting how many messages a new filter matches.

    With --dry-run it notes only that, and returns False.
    """
    filters = {name: value for name, value in changes.items() if name in FILTERS}
    if args.dry_run:
        if filters != changes:
            raise OptionError("--dry-run works only with --tags and --header")
        note(describe_matches(admin.tag_matches(args.topic, **filters)))
        return False
    # An empty value removes the filter, so there is nothing to count.
    if any(filters.values()):
        note_matches(admin, args.topic, filters)
    return admin.change_subscription(args.group, args.topic, **changes)


def note_matches(admin: Admin, topic: str, filters: dict[str, Any]) -> None:
    """Note how many of the last messages match the filters.

    If they cannot be counted, that is noted, and the filters are set all the same.
    """
    try:
        note(describe_matches(admin.tag_matches(topic, **filters)))
    # The key may not browse, the broker is of an older release, or nodes do not answer.
    except (Forbidden, NotFound, Unavailable) as error:
        note(f"could not count messages that match the filter: {error}")


def describe_matches(matches: TagMatches) -> str:
    """Return the counts of matching messages as a sentence.

    >>> describe_matches({"looked_at": 9, "matching": 0, "away": []})
    'none of the last 9 messages would match: they are skipped and committed, not delivered'
    """
    uncounted = (
        f" (not counted, because they do not answer: {', '.join(matches['away'])})"
        if matches["away"]
        else ""
    )
    if not matches["looked_at"]:
        return f"no messages to test the filter with{uncounted}"
    if not matches["matching"]:
        consequence = "they are skipped and committed, not delivered"
        return (
            f"none of the last {matches['looked_at']} messages would match{uncounted}: "
            f"{consequence}"
        )
    return (
        f"{matches['matching']} of the last {matches['looked_at']} messages would "
        f"match{uncounted}"
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
            page=lambda subscription, colours: format_facts(subscription, FACTS, colours),
        ),
        settings(
            "change settings; running members apply them at once",
            (GROUP, TOPIC),
            SETTINGS,
            change_settings,
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
