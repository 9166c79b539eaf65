"""Rules of retention for a queue: which offsets to keep, and when a clock cannot be
trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from metadata.rules.alarm_texts import AlarmText, alarm_text

MAX_CLOCK_DIFFERENCE_S = 3600  # larger differences between two clocks are errors


class Span(NamedTuple):
    """Offsets first … end - 1 and their size in bytes."""

    first: int
    end: int
    bytes: int


def keep_from_by_size(spans: Sequence[Span], *, most: int, whole: bool) -> int:
    """Return the lowest offset from which the spans (in order) take at most `most` bytes.

    `whole`: spans can only be deleted as a whole, and the last one, which is written
    to, stays. Otherwise at least the last offset stays.

    >>> spans = [Span(0, 10, 100), Span(10, 20, 100), Span(20, 25, 50)]
    >>> [keep_from_by_size(spans, most=170, whole=whole) for whole in (True, False)]
    [10, 8]
    >>> [keep_from_by_size(spans, most=1, whole=whole) for whole in (True, False)]
    [20, 24]
    """
    keep_from, remaining = spans[-1].end, most
    for span in reversed(spans):
        # The messages of a span count as equally large.
        if span.bytes > remaining:
            fitting = int((span.end - span.first) * remaining / span.bytes)
            keep_from = keep_from if whole else span.end - fitting
            break
        keep_from, remaining = span.first, remaining - span.bytes
    return min(keep_from, spans[-1].first if whole else spans[-1].end - 1)


def keep_from_by_age(*, expired: int, long_expired: int, unread: Sequence[int]) -> int:
    """Return the lowest offset to keep: expired messages go, unless unread and not long
    expired.

    `unread`: positions of the groups for which unread messages are kept longer.

    >>> keep_from_by_age(expired=90, long_expired=20, unread=[50, 70])
    50
    >>> keep_from_by_age(expired=90, long_expired=60, unread=[50, 70])
    60
    >>> keep_from_by_age(expired=90, long_expired=0, unread=[])
    90
    """
    return min([expired, max(long_expired, min(unread, default=expired))])


def count_lost(*, committed: int, low: int, keep_from: int) -> int:
    """Return how many messages a reader has not read that are deleted when `low` rises to
    `keep_from`.

    >>> count_lost(committed=5, low=2, keep_from=9), count_lost(committed=5, low=7, keep_from=9)
    (4, 2)
    """
    return max(0, keep_from - max(committed, low))


def clock_problem(*, now_ms: int, reference_ms: int, newest_ms: int | None) -> str | None:
    """Return why the clock of a node cannot be trusted, None if it can.

    It is compared with the clock of the metadata database and with the newest message
    of the node.

    >>> clock_problem(now_ms=10**9, reference_ms=0, newest_ms=None)
    "the node's clock is 11.6 days ahead of the metadata database's"
    >>> clock_problem(now_ms=0, reference_ms=0, newest_ms=7_200_000)
    "its newest message was stored 2.0 hours after the node's present time"
    """
    difference_s = (now_ms - reference_ms) / 1000
    if abs(difference_s) > MAX_CLOCK_DIFFERENCE_S:
        return alarm_text(
            "clock_ahead" if difference_s > 0 else "clock_behind",
            by=_duration_text(abs(difference_s)),
        )
    # A message from the future means that the clock was set back.
    if newest_ms is not None and newest_ms - now_ms > MAX_CLOCK_DIFFERENCE_S * 1000:
        return alarm_text("newest_ahead", by=_duration_text((newest_ms - now_ms) / 1000))
    return None


def jump_problem(*, passed_s: float, elapsed_s: float) -> str | None:
    """Return why a clock that advanced by `passed_s` in `elapsed_s` real seconds cannot be
    trusted.

    None if it can.

    >>> jump_problem(passed_s=90_000, elapsed_s=600).partition(";")[0]
    "the metadata database's clock has jumped 24.8 hours ahead"
    >>> jump_problem(passed_s=700, elapsed_s=600)
    """
    ahead_s = passed_s - elapsed_s
    if ahead_s <= MAX_CLOCK_DIFFERENCE_S:
        return None
    return alarm_text("jumped", by=_duration_text(ahead_s))


def _duration_text(seconds: float) -> AlarmText:
    """Return a duration in hours, or in days from two days on."""
    hours = seconds / 3600
    return (
        alarm_text("hours", hours=f"{hours:.1f}")
        if hours < 48
        else alarm_text("days", days=f"{hours / 24:.1f}")
    )
