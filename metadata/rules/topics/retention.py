"""Rules of retention for a queue; offsets and times are given, nothing is looked up here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from metadata.rules.alarm_texts import AlarmText, say

CLOCK_S = 3600  # by so much two clocks of one system may differ


class Span(NamedTuple):
    """Offsets first … end-1 and the bytes they take."""

    first: int
    end: int
    bytes: int


def by_size(spans: Sequence[Span], *, most: int, whole: bool) -> int:
    """The lowest offset from which on rising spans take at most `most` bytes.

    `whole`: spans go as a whole, and the last one, which is written to, always stays.
    Otherwise at least the last offset does.

    >>> spans = [Span(0, 10, 100), Span(10, 20, 100), Span(20, 25, 50)]
    >>> by_size(spans, most=170, whole=True), by_size(spans, most=170, whole=False)
    (10, 8)
    >>> by_size(spans, most=1, whole=True), by_size(spans, most=1, whole=False)
    (20, 24)
    """
    keep, left = spans[-1].end, most
    for span in reversed(spans):
        if span.bytes > left:
            fitting = int((span.end - span.first) * left / span.bytes)
            keep = keep if whole else span.end - fitting
            break
        keep, left = span.first, left - span.bytes
    return min(keep, spans[-1].first if whole else spans[-1].end - 1)


def by_age(*, expired: int, long_expired: int, unread: Sequence[int]) -> int:
    """The offset to keep from: what is expired goes, unless it is unread and not long
    expired.

    `unread`: where the groups stand for whom messages are kept longer.

    >>> by_age(expired=90, long_expired=20, unread=[50, 70])
    50
    >>> (by_age(expired=90, long_expired=60, unread=[50, 70]),
    ...  by_age(expired=90, long_expired=0, unread=[])) (60, 90)
    """
    return min([expired, max(long_expired, min(unread, default=expired))])


def lost(*, committed: int, low: int, keep_from: int) -> int:
    """Count the messages a reader has not read that go when `low` is raised.

    >>> lost(committed=5, low=2, keep_from=9), lost(committed=5, low=7, keep_from=9)
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
        return say("clock_ahead" if apart > 0 else "clock_behind", by=_shown(abs(apart)))
    if newest_ms is not None and newest_ms - now_ms > CLOCK_S * 1000:
        return say("newest_ahead", by=_shown((newest_ms - now_ms) / 1000))
    return None


def jump_problem(*, passed_s: float, elapsed_s: float) -> str | None:
    """Return why a clock by which `passed_s` went by cannot be trusted, when it really were
    `elapsed_s`.

    >>> jump_problem(passed_s=90_000, elapsed_s=600)
    "the metadata database's clock has jumped 24.8 hours ahead; if it is right now, run
    manage.py cleanup"
    >>> jump_problem(passed_s=700, elapsed_s=600)
    """
    ahead = passed_s - elapsed_s
    if ahead <= CLOCK_S:
        return None
    return say("jumped", by=_shown(ahead))


def _shown(seconds: float) -> AlarmText:
    hours = seconds / 3600
    return (
        say("hours", hours=f"{hours:.1f}")
        if hours < 48
        else say("days", days=f"{hours / 24:.1f}")
    )
