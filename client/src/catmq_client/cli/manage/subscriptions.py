"""catmq subscription: the settings of a group's subscription to a topic, changed while it reads."""

from __future__ import annotations

import argparse
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.admin.shapes import TagMatches
from catmq_client.cli.arguments import UNITS, or_none, span, whole
from catmq_client.cli.output import Columns, facts, fields, note
from catmq_client.cli.verbs import GROUP, TOPIC, Argument, Noun, detail, settings
from catmq_client.errors import Forbidden, NotFound, OptionError, Unavailable

DAY_MS = 86_400_000
YEAR = "a span like 10s, 5m, 1h or 7d, at most 365d"
SECONDS = span(0, 365 * 86_400, YEAR, units=UNITS[1:], unit_ms=1_000)


def spans(text: str) -> list[int]:
    """Parse spans with commas between them."""
    return [SECONDS(part) for part in text.split(",")]


def between(least: int, most: int) -> Any:
    """Return a kind: a span in ms, or none."""
    wanted = f"a span like 500ms or 30s, from {least} to {most} ms"
    return or_none(span(least, most, wanted))


SETTINGS = (
    Argument(
        "--ordered",
        "retry a failed message in place; it blocks its queue or key until its retries are used up",
        action=argparse.BooleanOptionalAction,
    ),
    Argument(
        "--retries N",
        "retries after the first delivery; then the message is a dead letter",
        type=whole(0, 1000),
    ),
    Argument(
        "--retry-delays SPANS",
        "delays before retry 1, 2, …, like 10s,30s,1m; the last one repeats",
        dest="retry_delays_s",
        type=spans,
    ),
    Argument("--dead-days DAYS", "retention of dead letters in days", type=whole(1, 3650)),
    Argument(
        "--delay SPAN", "delivery delay after a message was stored; 0s: none", dest="delay_s", type=SECONDS
    ),
    Argument("--tags 'A || B'", "only messages with one of these tags; '*': all"),
    Argument(
        "--handler-timeout SPAN|none",
        "timeout of a handler, which has failed then",
        dest="handler_timeout_ms",
        type=between(100, DAY_MS),
    ),
    Argument(
        "--breaker-failures N|none",
        "consecutive failures that pause the handler",
        type=or_none(whole(1, 1_000_000)),
    ),
    Argument(
        "--breaker-pause SPAN",
        "length of that pause, before one message is tried",
        dest="breaker_pause_s",
        type=SECONDS,
    ),
    Argument(
        "--threads N|none",
        "threads of each member's run(); none: set by the member",
        type=or_none(whole(1, 1000)),
    ),
    Argument(
        "--handler-batch N|none",
        "maximum messages of a call of a batch handler",
        type=or_none(whole(1, 1000)),
    ),
    Argument("--max-poll-records N|none", "maximum messages of a fetch", type=or_none(whole(1, 1000))),
    Argument(
        "--max-wait SPAN|none",
        "maximum wait of a member's poll at the broker",
        dest="fetch_max_wait_ms",
        type=between(0, 30_000),
    ),
)
FACTS: Columns = {
    **fields("group topic stopped"),
    "stopped queues": lambda row: ", ".join(map(str, row["stopped_queues"])),
    **{option.dest.replace("_", " "): option.dest for option in SETTINGS},
    "retry delays s": lambda row: joined(row.get("retry_delays_s")),
    "tags": lambda row: joined(row.get("tags")) or "all",
}


def joined(value: object) -> object:
    """Return a list as text, anything else as it is."""
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def change(admin: Admin, args: argparse.Namespace, given: dict[str, Any]) -> object:
    """Change settings; a tag filter is tried first, with --dry-run only that."""
    if args.dry_run:
        if list(given) != ["tags"]:
            raise OptionError("--dry-run tries --tags, and nothing else")
        note(taken(admin.tag_matches(args.topic, args.tags)))
        return False
    if given.get("tags"):
        try_tags(admin, args.topic, args.tags)
    return admin.change_subscription(args.group, args.topic, **given)


def try_tags(admin: Admin, topic: str, tags: str) -> None:
    """Tell what a filter would have taken lately, before it is set; it is set also if nobody can tell."""
    try:
        note(taken(admin.tag_matches(topic, tags)))
    except (Forbidden, NotFound, Unavailable) as error:  # no right to browse, an older broker, nodes away
        note(f"whether the tags match any message is not known: {error}")


def taken(found: TagMatches) -> str:
    """Return the figures of a tag filter as a sentence.

    >>> taken({"looked_at": 9, "matching": 0, "away": []})
    'none of the last 9 messages would match: such messages are passed and committed, never handled'
    """
    away = f" (not counted, because they do not answer: {', '.join(found['away'])})" if found["away"] else ""
    if not found["looked_at"]:
        return f"no messages to try the tags on{away}"
    if not found["matching"]:
        passed = "such messages are passed and committed, never handled"
        return f"none of the last {found['looked_at']} messages would match{away}: {passed}"
    return f"{found['matching']} of the last {found['looked_at']} messages would match{away}"


NOUN = Noun(
    "subscription",
    "show and change the settings of a subscription",
    (
        detail(
            "show",
            "show the settings of a subscription",
            (GROUP, TOPIC),
            lambda admin, args: admin.subscription(args.group, args.topic),
            page=lambda found: facts(found, FACTS),
        ),
        settings(
            "change settings; members follow at once, without a restart",
            (GROUP, TOPIC),
            SETTINGS,
            change,
            label="subscription of {group} to {topic}",
            flags=(Argument("--dry-run", "only count how many of the last messages --tags would match"),),
        ),
    ),
)
