"""Options for the settings of topics, groups and subscriptions, from the server's
declarations.

settings.json has the declarations; `manage.py settings_reference --write` writes it. So
each declared setting has an option here, with the same name, range and meaning as in the
API and the portal.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from catmq_client.cli.arguments import (
    UNITS,
    HeaderFilterAction,
    byte_size,
    or_none,
    parse_header_filter,
    time_span,
    whole_number,
)
from catmq_client.cli.verbs import Argument, Arguments

# Settings with commands of their own: pause and resume, quota.
OTHER_COMMANDS = ("stopped", "stopped_queues", "max_messages_per_s", "max_bytes_per_s")
# Options whose name differs from that of their setting.
FLAGS = {
    "alarm_lag_s": "--alarm-age",
    "max_active_members": "--max-active",
    "fetch_max_wait_ms": "--max-wait",
    "headers": "--header",
}
# Former options, whose values are numbers in the setting's own unit.
FORMER_FLAGS = {"session_timeout_ms": "--session-timeout-ms"}
UNIT_MS = {"ms": 1, "s": 1_000, "seconds": 1_000}
_DECLARATIONS: dict[str, list[dict[str, Any]]] = json.loads(
    files("catmq_client.cli").joinpath("settings.json").read_text(encoding="utf-8")
)


def options(noun: str) -> Arguments:
    """Return the options for the settings of a topic, group or subscription.

    An option is absent from the parsed arguments unless it is present on the command line.
    """
    return tuple(
        _build_option(setting).optional()
        for setting in _DECLARATIONS[noun]
        if setting["name"] not in OTHER_COMMANDS
    )


def _build_option(setting: dict[str, Any]) -> Argument:
    """Return the option of a declared setting."""
    flag = FLAGS.get(setting["name"]) or _flag_name(setting["name"])
    if setting["kind"] == "flag":
        return Argument(flag, help_text(setting), action=argparse.BooleanOptionalAction)
    if setting["kind"] == "choice":
        return Argument(flag, help_text(setting), choices=tuple(setting["words"]))
    if setting["kind"] == "headers":
        keywords = {
            "type": parse_header_filter,
            "action": HeaderFilterAction,
            "dest": setting["name"],
        }
        return Argument(
            f"{flag} NAME=VALUE[,VALUE]", f"{help_text(setting)} (repeatable)", **keywords
        )
    metavar, parse_value = _value_type(setting)
    if setting["kind"] == "whole" and "null" in setting:
        metavar, parse_value = f"{metavar}|none", or_none(parse_value)
    old_keywords: dict[str, Any] = {}
    if setting["name"] in FORMER_FLAGS:
        old_keywords = {
            "old": FORMER_FLAGS[setting["name"]],
            "old_type": whole_number(setting["least"], setting["most"]),
        }
    return Argument(
        f"{flag} {metavar}",
        help_text(setting),
        dest=setting["name"],
        type=parse_value,
        **old_keywords,
    )


def _flag_name(name: str) -> str:
    """Return the option of a setting, without the unit, which is part of its value.

    >>> _flag_name("handler_timeout_ms"), _flag_name("allow_addresses"), _flag_name("dead_days")
    ('--handler-timeout', '--allow', '--dead-days')
    """
    for ending in ("_ms", "_s", "_addresses"):
        name = name.removesuffix(ending)
    return "--" + name.replace("_", "-")


def _value_type(setting: dict[str, Any]) -> tuple[str, Callable[[str], Any]]:
    """Return the metavar and the type of an option's value."""
    unit, minimum, maximum = (
        setting.get("unit", ""),
        setting.get("least", 0),
        setting["most"],
    )
    if setting["kind"] == "text":
        return ("ADDRESSES" if setting["name"].endswith("_addresses") else "TEXT"), str
    if setting["kind"] == "tags":
        return "'A || B'", str
    if setting["kind"] == "numbers":
        parse_span = time_span(
            minimum,
            maximum,
            "a span like 10s, 5m, 1h or 7d",
            units=UNITS[1:],
            unit_ms=UNIT_MS[unit],
        )
        return "SPANS", lambda text: [parse_span(span) for span in text.split(",")]
    if unit == "bytes":
        return "SIZE", byte_size(minimum, maximum)
    if unit in UNIT_MS:
        return "SPAN", time_span(
            minimum,
            maximum,
            _describe_spans(minimum, maximum, unit),
            unit_ms=UNIT_MS[unit],
            # UNITS begins with ms, which a setting in seconds cannot hold.
            units=UNITS if unit == "ms" else UNITS[1:],
        )
    return {"days": "DAYS"}.get(unit, "N"), whole_number(minimum, maximum)


def _describe_spans(minimum: int, maximum: int, unit: str) -> str:
    """Return the accepted spans as text."""
    if unit == "ms":
        return f"a span like 500ms or 30s, from {minimum} to {maximum} ms"
    days, rest = divmod(maximum, 86_400)
    return f"a span like 10s, 5m, 1h or 7d, at most {f'{maximum}s' if rest else f'{days}d'}"


def help_text(setting: dict[str, Any]) -> str:
    """Return the help of a setting: its meaning, its choices and its default.

    >>> help_text({"kind": "whole", "label": "Retries", "help": "Retries after a failure.",
    ...     "default": 16})
    'retries after a failure (default 16)'
    """
    sentence = setting["help"] or setting["label"]
    first_word = sentence.partition(" ")[0]
    # Help texts begin with a small letter, unless the first word is a name such as MySQL.
    if first_word[1:] == first_word[1:].lower():
        sentence = sentence[0].lower() + sentence[1:]
    parts = [sentence.rstrip(".")]
    parts += [f"{word}: {meaning}" for word, meaning in setting.get("words", {}).items()]
    if "null" in setting:
        parts.append(
            f"{'none' if setting['kind'] == 'whole' else repr('')}: {setting['null']}"
        )
    default = setting.get("default")
    if default in (None, "", [], False):
        return "; ".join(parts)
    if isinstance(default, list):
        shown_default = ",".join(map(str, default))
    else:
        shown_default = f"{default} {setting.get('unit', '')}".rstrip()
    return f"{'; '.join(parts)} (default {shown_default})"
