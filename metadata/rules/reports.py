"""Conclusions of reports."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

BUSY_QUEUE = 50_000_000  # messages per queue and day; above it more queues help
CALM_TOPIC = 1_000_000  # messages per topic and day; below it a single queue is enough


def judge_topic(*, sent: int, groups: int, queues: int, days: int) -> str:
    """Return the verdict on a topic, '' if there is none.

    zombie: no sends and no subscriptions; unsubscribed: sends, but no subscription;
    idle: subscriptions, but no sends.

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
    if sent / days / queues > BUSY_QUEUE:
        return "should expand"
    return "should shrink" if queues > 1 and sent / days < CALM_TOPIC else ""


def percentile(sorted_values: Sequence[int], percent: int) -> int | None:
    """Return the value below which `percent` percent of the sorted values lie, None if
    there are none.

    >>> percentile([1, 2, 3, 4], 50), percentile([7], 99), percentile([], 50)
    (3, 7, None)
    """
    return (
        sorted_values[min(len(sorted_values) - 1, len(sorted_values) * percent // 100)]
        if sorted_values
        else None
    )


def day_name(number: int) -> str:
    """Return a day, counted from 1970, as text.

    >>> day_name(0), day_name(20_779)
    ('1970-01-01', '2026-11-22')
    """
    return (date(1970, 1, 1) + timedelta(days=number)).isoformat()


def days_until_full(free: int, growth_per_day: float) -> int | None:
    """Return the days until no byte is free, None if the size does not grow.

    >>> days_until_full(100, 30.0), days_until_full(100, 0.0), days_until_full(-5, 1.0)
    (3, None, 0)
    """
    return max(0, int(free / growth_per_day)) if growth_per_day > 0 else None
