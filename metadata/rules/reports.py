"""Conclusions of reports; counts and times are given."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

BUSY = 50_000_000  # messages of a queue a day: above it more queues help
CALM = 1_000_000  # messages of a topic a day: below it one queue does


def judge_topic(*, sent: int, groups: int, queues: int, days: int) -> str:
    """Return the verdict on a topic, '' if there is none.

    zombie: nobody sends, nobody reads; unsubscribed: sent to but not read; idle: read but
    not sent to.

    >>> judge_topic(sent=0, groups=0, queues=4, days=7)
    'zombie'
    >>> judge_topic(sent=5, groups=0, queues=1, days=7)
    'unsubscribed'
    >>> judge_topic(sent=0, groups=1, queues=1, days=7)
    'idle'
    >>> judge_topic(sent=70, groups=1, queues=4, days=7)
    'should shrink'
    >>> judge_topic(sent=700_000_000, groups=1, queues=1, days=7)
    'should expand'
    """
    if not sent:
        return "idle" if groups else "zombie"
    if not groups:
        return "unsubscribed"
    if sent / days / queues > BUSY:
        return "should expand"
    return "should shrink" if queues > 1 and sent / days < CALM else ""


def percentile(rising: Sequence[int], percent: int) -> int | None:
    """The value below which so many percent of the rising ones lie; None of none.

    >>> percentile([1, 2, 3, 4], 50), percentile([7], 99), percentile([], 50)
    (3, 7, None)
    """
    return rising[min(len(rising) - 1, len(rising) * percent // 100)] if rising else None


def day_name(number: int) -> str:
    """A day, counted from 1970, as text.

    >>> day_name(0), day_name(20_779)
    ('1970-01-01', '2026-11-22')
    """
    return (date(1970, 1, 1) + timedelta(days=number)).isoformat()


def days_until_full(free: int, a_day: float) -> int | None:
    """After how many days nothing is free any more; None if it does not grow.

    >>> days_until_full(100, 30.0), days_until_full(100, 0.0), days_until_full(-5, 1.0)
    (3, None, 0)
    """
    return max(0, int(free / a_day)) if a_day > 0 else None
