"""catmq subscription set | show: how the messages of a topic come to a group, changed while it reads."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.admin.queue_shapes import TagMatches
from catmq_client.cli.arguments import or_none, whole, wrong
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import add_output, facts, json_line, note, show, write
from catmq_client.errors import Forbidden, NotFound, OptionError, Unavailable

SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
MOST_S = 365 * 86_400
DAY_MS = 86_400_000


def seconds(text: str) -> int:
    """A span like 10s, 5m or 1h, in seconds.

    >>> seconds("90"), seconds("5m")
    (90, 300)
    """
    found = re.fullmatch(r"(\d{1,9})([smhd]?)", text.strip(), re.ASCII)
    value = int(found[1]) * SECONDS[found[2] or "s"] if found else -1
    if not 0 <= value <= MOST_S:
        raise wrong(f"{text!r}: give a span like 10s, 5m, 1h or 7d, at most 365d")
    return value


def spans(text: str) -> list[int]:
    """Spans with commas between them."""
    return [seconds(part) for part in text.split(",")]


def span_ms(least: int, most: int) -> Callable[[str], int]:
    """A span like 500ms or 30s, in ms."""

    def parse(text: str) -> int:
        short = re.fullmatch(r"(\d{1,9})ms", text.strip(), re.ASCII)
        value = int(short[1]) if short else seconds(text) * 1_000
        if not least <= value <= most:
            raise wrong(f"{text!r}: give a span like 500ms or 30s, from {least} to {most} ms")
        return value

    return parse


# What `set` changes: setting, option, the form of its value, help
SETTINGS: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    (
        "ordered",
        "--ordered",
        {"action": argparse.BooleanOptionalAction},
        "a message that fails is retried in place, and holds its queue or key until its retries are used up",
    ),
    (
        "retries",
        "--retries",
        {"metavar": "N", "type": whole(0, 1000)},
        "after the first delivery; then a message is dead",
    ),
    (
        "retry_delays_s",
        "--retry-delays",
        {"metavar": "SPANS", "type": spans},
        "pauses before retry 1, 2, …, like 10s,30s,1m; the last one repeats",
    ),
    (
        "dead_days",
        "--dead-days",
        {"metavar": "DAYS", "type": whole(1, 3650)},
        "how long dead messages are kept",
    ),
    (
        "delay_s",
        "--delay",
        {"metavar": "SPAN", "type": seconds},
        "a message comes so long after it was stored; 0s: at once",
    ),
    (
        "tags",
        "--tags",
        {"metavar": "'A || B'"},
        "only messages with one of these tags; '*': all",
    ),
    (
        "handler_timeout_ms",
        "--handler-timeout",
        {"metavar": "SPAN|none", "type": or_none(span_ms(100, DAY_MS))},
        "a handler that takes longer has failed",
    ),
    (
        "breaker_failures",
        "--breaker-failures",
        {"metavar": "N|none", "type": or_none(whole(1, 1_000_000))},
        "so many failures in a row pause the handler",
    ),
    (
        "breaker_pause_s",
        "--breaker-pause",
        {"metavar": "SPAN", "type": seconds},
        "for how long, before one message is tried",
    ),
    (
        "threads",
        "--threads",
        {"metavar": "N|none", "type": or_none(whole(1, 1000))},
        "of each member's run(); none: as the member says",
    ),
    (
        "handler_batch",
        "--handler-batch",
        {"metavar": "N|none", "type": or_none(whole(1, 1000))},
        "messages that a handler of batches gets at once",
    ),
    (
        "max_poll_records",
        "--max-poll-records",
        {"metavar": "N|none", "type": or_none(whole(1, 1000))},
        "messages that a member fetches at once",
    ),
    (
        "fetch_max_wait_ms",
        "--max-wait",
        {"metavar": "SPAN|none", "type": or_none(span_ms(0, 30_000))},
        "how long a member's poll waits at the broker",
    ),
)


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq subscription`; what is not given to `set` is absent."""
    noun = commands.add_parser("subscription", help="show and change how a topic's messages come to a group")
    verbs = noun.add_subparsers(metavar="VERB", required=True)
    shower = verbs.add_parser("show", parents=[common], help="the settings of a subscription")
    add_output(shower, "table")
    shower.set_defaults(command=show_subscription)
    setter = verbs.add_parser(
        "set", parents=[common], help="change settings; members follow at once, without a restart"
    )
    setter.set_defaults(command=set_subscription)
    for command in (shower, setter):
        command.add_argument("group", metavar="GROUP")
        command.add_argument("topic", metavar="TOPIC")
    for dest, option, form, text in SETTINGS:
        setter.add_argument(option, dest=dest, default=argparse.SUPPRESS, help=text, **form)
    setter.add_argument(
        "--dry-run", action="store_true", help="only tell how many of the last messages --tags would take"
    )


def show_subscription(args: argparse.Namespace, brokers: Brokers) -> int:
    """Shows a subscription's settings."""
    found: dict[str, Any] = dict(brokers.admin().subscription(args.group, args.topic))
    if args.output == "json":
        write(json_line(found))
        return 0
    told = [(name.replace("_", " "), shown(name, found.get(name))) for name, *_ in SETTINGS]
    stops = [("stopped", found["stopped"]), ("stopped queues", shown("", found["stopped_queues"]))]
    show(facts([("group", found["group"]), ("topic", found["topic"]), *stops, *told]))
    return 0


def shown(name: str, value: object) -> object:
    """A setting as `show` tells it."""
    if name == "tags" and not value:
        return "all"
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def set_subscription(args: argparse.Namespace, brokers: Brokers) -> int:
    """Changes the settings that were given. Raises OptionError for none."""
    given = {name: getattr(args, name) for name, *_ in SETTINGS if hasattr(args, name)}
    if not given:
        raise OptionError(f"nothing to set: give {', '.join(option for _, option, *_ in SETTINGS)}")
    admin = brokers.admin()
    if args.dry_run:
        if list(given) != ["tags"]:
            raise OptionError("--dry-run tries --tags, and nothing else")
        note(taken(admin.tag_matches(args.topic, args.tags)))
        return 0
    if given.get("tags"):
        try_tags(admin, args.topic, args.tags)
    admin.change_subscription(args.group, args.topic, **given)
    told = ", ".join(f"{name}={'none' if value is None else repr(value)}" for name, value in given.items())
    note(f"subscription of {args.group} to {args.topic}: {told}")
    return 0


def try_tags(admin: Admin, topic: str, tags: str) -> None:
    """Tells what a filter would have taken lately, before it is set; it is set also if nobody can tell."""
    try:
        note(taken(admin.tag_matches(topic, tags)))
    except (Forbidden, NotFound, Unavailable) as error:  # no right to browse, an older broker, nodes away
        note(f"whether the tags match any message is not known: {error}")


def taken(found: TagMatches) -> str:
    """The figures of a tag filter as a sentence.

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
