"""Names that users may give."""

from __future__ import annotations

import re

from metadata.errors import Code, Invalid

MAX_CHARS = 100
FAILURE_SUFFIX = "_fail"  # names of failure topics, which only the system makes
# In names of topics that Celery's transport makes for itself: shop._log.celeryev,
# shop._p3.mails.
INTERNAL_MARK = "._"
LANE = re.compile(r"(.+)\.(?:high|low)[0-9]*")
PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def is_name(text: str) -> bool:
    """Return True if `text` is spelled as a name.

    >>> is_name("orders.v2"), is_name(".."), is_name("a b"), is_name("é")
    (True, False, False, False)
    """
    return PATTERN.fullmatch(text) is not None


def failure_name(group: str, topic: str) -> str:
    """The name of the failure topic of a pair; for display and old clients, the pair
    identifies it.

    >>> failure_name("billing", "orders")
    'billing_orders_fail'
    """
    return f"{group}_{topic}{FAILURE_SUFFIX}"


def lane_base(name: str) -> str:
    """Return the topic whose tasks of another priority Django's tasks put into this one; ''
    if none.

    Users may give topics such names, too: it is a lane only if the returned topic exists.

    >>> lane_base("tasks.mails.low"), lane_base("tasks.mails.high2"), lane_base("tasks.mails")
    ('tasks.mails', 'tasks.mails', '')
    """
    match = LANE.fullmatch(name)
    return match[1] if match else ""


def check_name(kind: str, text: str, *, field: str = "name") -> str:
    """`text` itself if users may call a `kind` (topic, group, node, …) so; raises Invalid
    naming `field`.
    """
    check_spelling(kind, text, field=field)
    if text.endswith(FAILURE_SUFFIX):
        raise Invalid.field(
            field,
            f"names ending in {FAILURE_SUFFIX} are reserved for retry topics: choose another",
        )
    return text


def check_spelling(kind: str, text: str, *, field: str = "name") -> str:
    """`text` itself if it is spelled as a name, whatever it ends in; raises Invalid naming
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
    """Raise Invalid(not_confirmed) unless whoever deletes `name` repeated it."""
    if confirm != name:
        raise Invalid(
            f"Deleting {name} must be confirmed: give confirm={name}",
            code=Code.NOT_CONFIRMED,
        )
