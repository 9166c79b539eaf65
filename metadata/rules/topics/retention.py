"""Rules of retention for a queue; offsets and times are given, nothing is looked up here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from metadata.rules.alarm_texts import AlarmText, alarm_text

CLOCK_S = 3600  # by so much two clocks of one system may differ


class Span(NamedTuple):
    """Offsets first … end-1 and the bytes they take."""

    first: int
    end: int
    bytes: int


def keep_from_by_size(spans: Sequence[Span], *, most: int, whole: bool) -> int:
    """The lowest offset from which on rising spans take at most `most` bytes.

    `whole`: spans go as a whole, and the last one, which is written to, always stays.
    Otherwise at least the last offset does.

    >>> spans = [Span(0, 10, 100), Span(10, 20, 100), Span(20, 25, 50)]
    >>> [keep_from_by_size(spans, most=170, whole=whole) for whole in (True, False)]
    [10, 8]
    >>> [keep_from_by_size(spans, most=1, whole=whole) for whole in (True, False)]
    [20, 24]
    """
    keep, left = spans[-1].end, most
    for span in reversed(spans):
        if span.bytes > left:
            fitting = int((span.end - span.first) * left / span.bytes)
            keep = keep if whole else span.end - fitting
            break
        keep, left = span.first, left - span.bytes
    return min(keep, spans[-1].first if whole else spans[-1].end - 1)


def keep_from_by_age(*, expired: int, long_expired: int, unread: Sequence[int]) -> int:
    """The offset to keep from: what is expired goes, unless it is unread and not long
    expired.

    `unread`: where the groups stand for whom messages are kept longer.

    >>> keep_from_by_age(expired=90, long_expired=20, unread=[50, 70])
    50
    >>> keep_from_by_age(expired=90, long_expired=60, unread=[50, 70])
    60
    >>> keep_from_by_age(expired=90, long_expired=0, unread=[])
    90
    """
    return min([expired, max(long_expired, min(unread, default=expired))])


def count_lost(*, committed: int, low: int, keep_from: int) -> int:
    """Count the messages a reader has not read that go when `low` is raised.

    >>> count_lost(committed=5, low=2, keep_from=9), count_lost(committed=5, low=7, keep_from=9)
    (4, 2)
    """
    return max(0, keep_from - max(committed, low))


def clock_problem(*, now_ms: int, reference_ms: int, newest_ms: int | None) -> str | None:
    """Return why a node's time cannot be trusted, beside the metadata database's and its
    own newest message.

    >>> clock_problem(now_ms=10**9, reference_ms=0, newest_ms=None)
    "the node's clock is 11.6 days ahead of the metadata database's"
    >>> clock_problem(now_ms=0, reference_ms=0, newest_ms=7_200_000)
    "its newest message was stored 2.0 hours after the node's present time"
    """
    apart = (now_ms - reference_ms) / 1000
    if abs(apart) > CLOCK_S:
        return alarm_text(
            "clock_ahead" if apart > 0 else "clock_behind", by=_shown(abs(apart))
        )
    if newest_ms is not None and newest_ms - now_ms > CLOCK_S * 1000:
        return alarm_text("newest_ahead", by=_shown((newest_ms - now_ms) / 1000))
    return None


def jump_problem(*, passed_s: float, elapsed_s: float) -> str | None:
    """Return why a clock by which `passed_s` went by cannot be trusted, when it really were
    `elapsed_s`.

    >>> jump_problem(passed_s=90_000, elapsed_s=600).partition(";")[0]
    "the metadata database's clock has jumped 24.8 hours ahead"
    >>> jump_problem(passed_s=700, elapsed_s=600)
    """
    ahead = passed_s - elapsed_s
    if ahead <= CLOCK_S:
        return None
    return alarm_text("jumped", by=_shown(ahead))


def _shown(seconds: float) -> AlarmText:
    hours = seconds / 3600
    return (
        alarm_text("hours", hours=f"{hours:.1f}")
        if hours < 48
        else alarm_text("days", days=f"{hours / 24:.1f}")
    )
