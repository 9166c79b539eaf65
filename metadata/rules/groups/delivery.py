"""Delivery of the messages of a topic to a group: the settings of a subscription, and
their rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from metadata.rules.groups.filters import MessageFilter
from metadata.rules.setting_types import Flag, Headers, Numbers, Tags, Whole, setting

SEPARATOR = "||"  # between the tags of a filter; a comma works, too
# Operators and quotes of the filters of other systems, and words that only stand between
# tags.
_EXPRESSION = re.compile(
    r"""[&()<>=!]|^(["']).*\1$|\s(and|or|not|in|is|like|between)\s|^not\s""", re.IGNORECASE
)
RETRY_DELAYS_S = (10, 30, 60, 300, 600, 1_800, 3_600)


def parse_tags(text: str) -> tuple[str, ...]:
    """Return the tags of a filter such as `new || paid` or `new,paid`; () if it accepts
    all messages.

    Raises ValueError. Filters that older releases stored stay valid; `check_tag_filter`
    is stricter.

    >>> parse_tags("new || paid"), parse_tags("new,paid"), parse_tags("*"), parse_tags("")
    (('new', 'paid'), ('new', 'paid'), (), ())
    """
    if text.strip() in ("", "*"):
        return ()
    tags = tuple(tag.strip() for tag in text.replace(SEPARATOR, ",").split(","))
    if not all(tags):
        raise ValueError("a tag is missing beside || or a comma")
    invalid_tag = next((tag for tag in tags if "|" in tag or "*" in tag), None)
    if invalid_tag is not None:
        raise ValueError(f"{invalid_tag!r} is not a tag")
    too_long = next((tag for tag in tags if len(tag) > 100), None)
    if too_long is not None:
        raise ValueError(f"the tag {too_long[:20]}… is longer than 100 characters")
    return tuple(dict.fromkeys(tags))


def check_tag_filter(text: str) -> None:
    """Raise ValueError for a filter that is an expression, which would be taken for a tag.

    No message has such a tag, so all messages would be skipped and committed.

    >>> check_tag_filter("a && b")
    Traceback (most recent call last):
    ValueError: 'a && b' is an expression, not a tag
    """
    for tag in parse_tags(text):
        if _EXPRESSION.search(tag):
            raise ValueError(f"{tag!r} is an expression, not a tag")


def _check_tag_setting(text: str) -> None:
    try:
        check_tag_filter(text)
    except ValueError as error:
        remedy = "write tags joined by ||, such as new || paid, or by commas; or * for all messages"
        raise ValueError(f"{error}: {remedy}") from error


YEAR_S = 365 * 86_400
CLIENT = "the client decides"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Settings of a subscription: when and how often a message is delivered. They take
    effect at once.

    None: no limit, or the client decides.
    """

    tags: tuple[str, ...] = setting(
        (),
        Tags(1000, _check_tag_setting, null="all messages"),
        "Tag filter",
        "Deliver only messages with one of these tags, separated by || or commas.",
    )
    headers: tuple[tuple[str, tuple[str, ...]], ...] = setting(
        (),
        Headers(8192, names=8, values=32, null="all messages"),
        "Header filter",
        "Deliver only messages that have each of these headers, with one of its values.",
    )
    delay_s: int = setting(
        0,
        Whole(0, YEAR_S, "s"),
        "Delivery delay",
        "Time between storing a message and delivering it.",
    )
    ordered: bool = setting(
        False,
        Flag(),
        "Ordered",
        "Retry failed messages in place. A failed message blocks its queue until it succeeds or "
        "has no retries left.",
    )
    retries: int = setting(
        16,
        Whole(0, 1000),
        "Retries",
        "Retries after the first delivery. After the last one, the message becomes a dead letter.",
    )
    retry_delays_s: tuple[int, ...] = setting(
        RETRY_DELAYS_S,
        Numbers(YEAR_S, "seconds"),
        "Retry delays",
        "Pauses before retry 1, 2, …, such as 10,30,60. The last one repeats.",
    )
    dead_days: int = setting(
        30,
        Whole(1, 3650, "days"),
        "Retention of dead letters",
        "Time to keep dead letters.",
    )
    handler_timeout_ms: int | None = setting(
        None,
        Whole(100, 86_400_000, "ms", null="no limit"),
        "Handler timeout",
        "Maximum time of a handler call. A call that takes longer counts as failed.",
    )
    breaker_failures: int | None = setting(
        None,
        Whole(1, 1_000_000, null="never"),
        "Circuit breaker threshold",
        "Consecutive failures that pause the subscription.",
    )
    breaker_pause_s: int = setting(
        30,
        Whole(1, 86_400, "s"),
        "Circuit breaker pause",
        "Length of the pause, after which one message is tried.",
    )
    threads: int | None = setting(
        None, Whole(1, 1000, null=CLIENT), "Handler threads", "Threads of each member."
    )
    handler_batch: int | None = setting(
        None,
        Whole(1, 1000, null=CLIENT),
        "Handler batch size",
        "Maximum number of messages in one call of a handler.",
    )
    max_poll_records: int | None = setting(
        None,
        Whole(1, 1000, null=CLIENT),
        "Maximum poll records",
        "Maximum number of messages that one poll returns.",
    )
    fetch_max_wait_ms: int | None = setting(
        None,
        Whole(0, 30_000, "ms", null=CLIENT),
        "Maximum fetch wait",
        "Maximum time that a fetch waits for a message.",
    )
    trace_percent: int = setting(
        0,
        Whole(0, 100, "%"),
        "Traced messages",
        "Share of the messages of which is recorded which member handled them, when and "
        "for how long. Kept "
        "for 3 days, at most 10,000 attempts of a group; 0: none.",
    )

    @property
    def only(self) -> MessageFilter:
        """The filter of the messages to deliver."""
        return MessageFilter(self.tags, self.headers)


def retry_delay_s(delays_s: Sequence[int], attempt: int) -> int:
    """Return the pause before retry `attempt` (1 = the first), before jitter.

    >>> [retry_delay_s((10, 30), attempt) for attempt in (1, 2, 3)]
    [10, 30, 30]
    """
    return delays_s[min(attempt, len(delays_s)) - 1]
