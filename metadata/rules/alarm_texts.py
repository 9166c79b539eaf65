"""Details of alarms: texts that are declared here, with their values.

An alarm stores the name of its text with the values, so that it is translated when it
is shown. The stored English text is for searches, for logs, and for alarms of releases
that did not store the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from metadata.installation import name_programs

TEXTS = {
    "moved": "messages are written to %(after)s now, before it was %(before)s",
    "metadata_moved": "metadata is written to %(after)s now, before it was %(before)s",
    "promoted": (
        "%(after)s was promoted, because %(before)s accepts no writes: %(gaps)s queues have a "
        "gap, at least %(messages)s messages are lost"
    ),
    "semi_fallback": (
        "acknowledged messages are on one server only: no semi-synchronous replica answers"
    ),
    "few_members": "%(reachable)s of %(listed)s members of its cluster are in contact",
    "not_promoted": "%(after)s accepts writes, but could not be promoted: %(why)s",
    "behind": "%(messages)s unread messages, the oldest for %(minutes)s min",
    "idle": "unread messages in queues without a consumer: %(queues)s",
    "idle_more": "unread messages in queues without a consumer: %(queues)s and %(more)s more",
    "dead": "%(new)s new dead letters in the last hour; %(total)s in total",
    "dropped_by_age": "%(messages)s unread messages of %(queue)s were deleted by age",
    "dropped_by_size": "%(messages)s unread messages of %(queue)s were deleted by size",
    "dropped_by_archive": "%(messages)s unread messages of %(queue)s were deleted by archive",
    "space": "%(percent)s %% of %(total)s GB are free",
    "unlimited": "no longer limited",
    "filling": "full in %(days)s days at its present growth",
    "error": "error: %(error)s",
    "not_by_age": "nothing is cleaned by age: %(why)s",
    "clock_ahead": "the node's clock is %(by)s ahead of the metadata database's",
    "clock_behind": "the node's clock is %(by)s behind the metadata database's",
    "newest_ahead": "its newest message was stored %(by)s after the node's present time",
    "jumped": "the metadata database's clock has jumped %(by)s ahead; "
    "if it is right now, run manage.py cleanup",
    "hours": "%(hours)s hours",
    "days": "%(days)s days",
    "no_head": "queue %(queue)s has no row in queue_head on its node",
    "start_outside": "log start offset %(start)s is not in 0 … %(end)s: run verify",
    "missing": "no message, log end offset is %(end)s",
    "missing_at": "no message at %(offset)s, but the log end offset is %(end)s",
    "missing_leased": "no message at an offset that was leased",
    "end_too_low": "log end offset %(end)s is below a stored message (%(stored)s)",
    "end_refused": "log end offset below a stored message (%(error)s)",
    "disagree": "%(count)s found; %(where)s: %(what)s",
}
MAX_CHARS = 1000  # characters of a value


class AlarmText(str):
    """A detail in English that carries the name of its text and the values."""

    __slots__ = ("facts",)
    facts: dict[str, Any]


def alarm_text(text: str, **values: str | int) -> AlarmText:
    """Return the detail with this name; a value may itself be a detail.

    >>> alarm_text("behind", messages=1200, minutes=15)
    '1,200 unread messages, the oldest for 15 min'
    >>> clock = alarm_text("clock_ahead", by=alarm_text("hours", hours="2.0"))
    >>> clock
    "the node's clock is 2.0 hours ahead of the metadata database's"
    >>> alarm_text("not_by_age", why=clock).partition(" the ")[0]
    'nothing is cleaned by age:'
    """
    facts = {
        "text": text,
        "values": {name: _to_stored(value) for name, value in values.items()},
    }
    detail = AlarmText(translate_detail(facts, ""))
    detail.facts = facts
    return detail


def error_text(error: str) -> AlarmText:
    """Return the detail for an error text of another component; a declared detail stays as
    it is.
    """
    return error if isinstance(error, AlarmText) else alarm_text("error", error=error)


def translate_detail(
    facts: Mapping[str, Any] | None, detail: str, translate: Callable[[str], str] = str
) -> str:
    """Return a stored detail in a language; `detail` itself if no known text is stored
    with it.

    >>> translate_detail(alarm_text("filling", days="2.4").facts, "",
    ...     {TEXTS["filling"]: "%(days)s 天后写满"}.__getitem__)
    '2.4 天后写满'
    >>> translate_detail(None, "7 unread messages")
    '7 unread messages'
    """
    text = TEXTS.get(facts["text"]) if facts else None
    # Written by a release that stored no facts, or by a later release with another text.
    if facts is None or text is None:
        return detail
    values = {name: _to_text(value, translate) for name, value in facts["values"].items()}
    # The English text is the key of its translation, so it is translated before the values
    # are put in.
    return name_programs(translate(text)) % values


def _to_stored(value: str | int) -> Any:
    if isinstance(value, AlarmText):
        return value.facts
    return value if isinstance(value, int) else str(value)[:MAX_CHARS]


def _to_text(value: Any, translate: Callable[[str], str]) -> str:
    if isinstance(value, Mapping):
        return translate_detail(value, "", translate)
    return f"{value:,}" if isinstance(value, int) else str(value)


def stored_facts(detail: str) -> dict[str, Any] | None:
    """Return the facts to store with a detail, None for a detail that is no declared text."""
    return detail.facts if isinstance(detail, AlarmText) else None
