"""Options for the settings of topics, groups and subscriptions, made from the server's
declarations.

settings.json holds the declarations: `manage.py settings_reference --write` writes it. So a
setting that is declared there has its option here, with the same name, range and meaning as
in the API and the portal.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from catmq_client.cli.arguments import (
    UNITS,
    Collected,
    accepted,
    or_none,
    size,
    span,
    whole,
)
from catmq_client.cli.verbs import Argument, Arguments

# Changed by commands of their own: pause and resume, quota.
ELSEWHERE = ("stopped", "stopped_queues", "max_messages_per_s", "max_bytes_per_s")
# Options with another name than their setting's.
NAMES = {
    "alarm_lag_s": "--alarm-age",
    "max_active_members": "--max-active",
    "fetch_max_wait_ms": "--max-wait",
    "headers": "--header",
}
# Former options of settings, in the setting's own unit.
FORMER = {"session_timeout_ms": "--session-timeout-ms"}
UNIT_MS = {"ms": 1, "s": 1_000, "seconds": 1_000}
_DECLARED: dict[str, list[dict[str, Any]]] = json.loads(
    files("catmq_client.cli").joinpath("settings.json").read_text(encoding="utf-8")
)


def options(noun: str) -> Arguments:
    """Return the options for the settings of a topic, group or subscription, absent unless
    given.
    """
    return tuple(
        _option(one).optional() for one in _DECLARED[noun] if one["name"] not in ELSEWHERE
    )


def _option(one: dict[str, Any]) -> Argument:
    flag = NAMES.get(one["name"]) or _flag(one["name"])
    if one["kind"] == "flag":
        return Argument(flag, text(one), action=argparse.BooleanOptionalAction)
    if one["kind"] == "choice":
        return Argument(flag, text(one), choices=tuple(one["words"]))
    if one["kind"] == "headers":
        told = {"type": accepted, "action": Collected, "dest": one["name"]}
        return Argument(f"{flag} NAME=VALUE[,VALUE]", f"{text(one)} (repeatable)", **told)
    metavar, kind = _value(one)
    if one["kind"] == "whole" and "null" in one:
        metavar, kind = f"{metavar}|none", or_none(kind)
    former: dict[str, Any] = {}
    if one["name"] in FORMER:
        former = {"old": FORMER[one["name"]], "old_type": whole(one["least"], one["most"])}
    return Argument(f"{flag} {metavar}", text(one), dest=one["name"], type=kind, **former)


def _flag(name: str) -> str:
    """Return an option without the unit, which its value has.

    >>> _flag("handler_timeout_ms"), _flag("allow_addresses"), _flag("dead_days")
    ('--handler-timeout', '--allow', '--dead-days')
    """
    for ending in ("_ms", "_s", "_addresses"):
        name = name.removesuffix(ending)
    return "--" + name.replace("_", "-")


def _value(one: dict[str, Any]) -> tuple[str, Callable[[str], Any]]:
    """Return the metavar and the kind of an option's value."""
    unit, least, most = one.get("unit", ""), one.get("least", 0), one["most"]
    if one["kind"] == "text":
        return ("ADDRESSES" if one["name"].endswith("_addresses") else "TEXT"), str
    if one["kind"] == "tags":
        return "'A || B'", str
    if one["kind"] == "numbers":
        each = span(
            least,
            most,
            "a span like 10s, 5m, 1h or 7d",
            units=UNITS[1:],
            unit_ms=UNIT_MS[unit],
        )
        return "SPANS", lambda text: [each(part) for part in text.split(",")]
    if unit == "bytes":
        return "SIZE", size(least, most)
    if unit in UNIT_MS:
        return "SPAN", span(
            least,
            most,
            _spans(least, most, unit),
            unit_ms=UNIT_MS[unit],
            units=_units(unit),
        )
    return {"days": "DAYS"}.get(unit, "N"), whole(least, most)


def _units(unit: str) -> tuple[str, ...]:
    return UNITS if unit == "ms" else UNITS[1:]


def _spans(least: int, most: int, unit: str) -> str:
    """Return the spans that are taken, as text."""
    if unit == "ms":
        return f"a span like 500ms or 30s, from {least} to {most} ms"
    days, rest = divmod(most, 86_400)
    return f"a span like 10s, 5m, 1h or 7d, at most {f'{most}s' if rest else f'{days}d'}"


def text(one: dict[str, Any]) -> str:
    """Return the help of a setting: what it is, its choices, and its default.

    >>> text({"kind": "whole", "label": "Retries", "help": "Retries after a failure.",
    ...     "default": 16})
    'retries after a failure (default 16)'
    """
    parts = [_begun(one["help"] or one["label"]).rstrip(".")]
    parts += [f"{word}: {meaning}" for word, meaning in one.get("words", {}).items()]
    if "null" in one:
        parts.append(f"{'none' if one['kind'] == 'whole' else repr('')}: {one['null']}")
    default = (
        "" if one.get("default") in (None, "", [], False) else f" (default {_shown(one)})"
    )
    return "; ".join(parts) + default


def _begun(text: str) -> str:
    """Return a sentence as the help begins it: with a small letter, unless that is a
    name's.
    """
    first = text.partition(" ")[0]
    return text if first[1:] != first[1:].lower() else text[0].lower() + text[1:]


def _shown(one: dict[str, Any]) -> str:
    if isinstance(one["default"], list):
        return ",".join(map(str, one["default"]))
    return f"{one['default']} {one.get('unit', '')}".rstrip()
