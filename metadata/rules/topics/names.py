"""Names that users may give to topics, groups and other objects."""

from __future__ import annotations

import re

from metadata.errors import Code, Invalid

MAX_CHARS = 100
FAILURE_SUFFIX = "_fail"  # names of retry topics, which only the system creates
# Part of the names of topics that Celery's transport creates: shop._log.celeryev,
# shop._p3.mails.
INTERNAL_MARK = "._"
PRIORITY = re.compile(
    r"p[0-9]+\.(.+)"
)  # the part after the mark, with the name of the queue
LANE = re.compile(r"(.+)\.(?:high|low)[0-9]*")
PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def is_name(text: str) -> bool:
    """Return True if `text` has the form of a name.

    >>> is_name("orders.v2"), is_name(".."), is_name("a b"), is_name("é")
    (True, False, False, False)
    """
    return PATTERN.fullmatch(text) is not None


def failure_name(group: str, topic: str) -> str:
    """Return the name of the retry topic of a group and topic, for display and old
    clients.

    >>> failure_name("billing", "orders")
    'billing_orders_fail'
    """
    return f"{group}_{topic}{FAILURE_SUFFIX}"


def lane_base(name: str) -> str:
    """Return the topic for whose tasks of another priority Django's tasks use this one; ''
    if none.

    Users may give topics such names, too: it is a lane only if the returned topic
    exists.

    >>> lane_base("tasks.mails.low"), lane_base("tasks.mails.high2"), lane_base("tasks.mails")
    ('tasks.mails', 'tasks.mails', '')
    """
    match = LANE.fullmatch(name)
    return match[1] if match else ""


def celery_base(name: str) -> str:
    """Return the topic for whose tasks of another priority Celery's transport created this
    one, or the virtual host for whose exchanges it did; '' if the name is neither.

    >>> celery_base("shop._p3.mails"), celery_base("shop._log.celeryev"), celery_base("mails")
    ('shop.mails', 'shop', '')
    """
    host, mark, rest = name.partition(INTERNAL_MARK)
    if not mark:
        return ""
    priority = PRIORITY.fullmatch(rest)
    return f"{host}.{priority[1]}" if priority else host


def check_name(kind: str, text: str, *, field: str = "name") -> str:
    """Return `text` if users may give this name to a `kind` (topic, group, node, …).
    Raises Invalid for `field`.
    """
    check_spelling(kind, text, field=field)
    if text.endswith(FAILURE_SUFFIX):
        raise Invalid.field(
            field,
            f"names ending in {FAILURE_SUFFIX} are reserved for retry topics: choose another",
        )
    return text


def check_spelling(kind: str, text: str, *, field: str = "name") -> str:
    """Return `text` if it has the form of a name, whatever its ending. Raises Invalid for
    `field`.
    """
    if not is_name(text):
        raise Invalid.field(
            field,
            f"a {kind} name has 1 to {MAX_CHARS} characters from A-Z a-z 0-9 . _ - "
            f"and begins with a letter or digit, not {text[: MAX_CHARS + 1]!r}",
        )
    return text


def check_confirmed(name: str, confirm: str | None) -> None:
    """Raise Invalid(not_confirmed) unless a deletion repeats the name."""
    if confirm != name:
        raise Invalid(
            f"Deleting {name} must be confirmed: give confirm={name}",
            code=Code.NOT_CONFIRMED,
        )
