"""Delivery of a topic's messages to a group: settings of a subscription, and the pure rules about them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

SEPARATOR = "||"  # between the tags of a filter; a comma will do
# Operators and quotes of other systems' filters, and words that only stand between two tags.
_EXPRESSION = re.compile(
    r"""[&()<>=!]|^(["']).*\1$|\s(and|or|not|in|is|like|between)\s|^not\s""", re.IGNORECASE
)
RETRY_DELAYS_S = (10, 30, 60, 300, 600, 1_800, 3_600)


@dataclass(frozen=True, slots=True)
class Delivery:
    """The settings of a subscription that say when and how often a message comes; they change while running.

    None: whoever reads decides (the client's own option).
    """

    ordered: bool = False  # a failing message holds its queue until its retries are used up
    retries: int = 16  # after the first delivery; then the message is dead
    retry_delays_s: tuple[int, ...] = RETRY_DELAYS_S  # before retry 1, 2, …; the last one repeats
    dead_days: int = 30  # how long dead messages are kept
    delay_s: int = 0  # a message is served so long after it was stored
    tags: tuple[str, ...] = ()  # none: all messages
    handler_timeout_ms: int | None = None  # None: no limit
    breaker_failures: int | None = None  # so many failures in a row pause the subscription; None: never
    breaker_pause_s: int = 30  # how long, before one message is tried
    threads: int | None = None
    handler_batch: int | None = None  # messages a handler gets at once
    max_poll_records: int | None = None
    fetch_max_wait_ms: int | None = None


def tags_of(text: str) -> tuple[str, ...]:
    """The tags of a filter such as `new || paid` or `new,paid`; none for one that takes everything.

    Raises ValueError. What older versions stored is read as it is; `check_filter` refuses more.

    >>> tags_of("new || paid"), tags_of("new,paid"), tags_of("*"), tags_of("")
    (('new', 'paid'), ('new', 'paid'), (), ())
    """
    if text.strip() in ("", "*"):
        return ()
    tags = tuple(tag.strip() for tag in text.replace(SEPARATOR, ",").split(","))
    if not all(tags):
        raise ValueError("a tag is missing beside || or a comma")
    odd = next((tag for tag in tags if "|" in tag or "*" in tag), None)
    if odd is not None:
        raise ValueError(f"{odd!r} is not a tag")
    too_long = next((tag for tag in tags if len(tag) > 100), None)
    if too_long is not None:
        raise ValueError(f"the tag {too_long[:20]}… is longer than 100 characters")
    return tuple(dict.fromkeys(tags))


def check_filter(text: str) -> None:
    """Raise ValueError for a filter that cannot be meant: an expression, which would be taken for one tag.

    No message carries such a tag, so everything would be passed over, and committed.

    >>> check_filter("a && b")
    Traceback (most recent call last):
    ValueError: 'a && b' is an expression, not a tag
    """
    for tag in tags_of(text):
        if _EXPRESSION.search(tag):
            raise ValueError(f"{tag!r} is an expression, not a tag")


def retry_delay_s(delays_s: Sequence[int], attempt: int) -> int:
    """The pause before retry `attempt` (1 = the first), before jitter.

    >>> [retry_delay_s((10, 30), attempt) for attempt in (1, 2, 3)]
    [10, 30, 30]
    """
    return delays_s[min(attempt, len(delays_s)) - 1]
