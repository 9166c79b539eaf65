"""Sparklines of lists: messages of topics and groups in each of the last minutes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Any

from metadata.db.clock import database_now
from metadata.db.transactions import reachable
from metadata.models import Sample
from metadata.monitoring.counters import SLOT_S
from metadata.monitoring.metrics_history import start_of_step


def sent_by_topic(*, topic_ids: Iterable[int], minutes: int = 30) -> dict[int, list[int]]:
    """Return the messages sent in each of the last minutes, oldest first, by topic id."""
    lines = _lines(("topic_ref",), minutes, topic_ref__in=list(topic_ids), group_ref=0)
    return {topic: line for (topic,), line in lines.items()}


def handled_by_group(
    *, group_ids: Iterable[int], minutes: int = 30
) -> dict[int, list[int]]:
    """Return the messages handled in each of the last minutes, oldest first, by group id."""
    lines = _lines(("group_ref",), minutes, "handled", group_ref__in=list(group_ids))
    return {group: line for (group,), line in lines.items()}


def handled_by_subscription(
    *, pairs: Collection[tuple[int, int]], minutes: int = 30
) -> dict[tuple[int, int], list[int]]:
    """Return the messages handled in each of the last minutes, oldest first, by (group id,
    topic id).
    """
    groups, topics = {group for group, _topic in pairs}, {topic for _group, topic in pairs}
    conditions = {"group_ref__in": groups, "topic_ref__in": topics}
    lines = _lines(("group_ref", "topic_ref"), minutes, "handled", **conditions)
    return {(group, topic): line for (group, topic), line in lines.items()}


def _lines(
    columns: tuple[str, ...], minutes: int, count: str = "messages", **conditions: Any
) -> dict[tuple[int, ...], list[int]]:
    """Return the column `count` of each of the last minutes, by the values of `columns`.

    The present minute is extrapolated (see _extrapolate).
    """
    with reachable():
        now = database_now()
        last = start_of_step(now, step_s=60)
        first = last - timedelta(minutes=minutes - 1)
        lines: dict[tuple[int, ...], list[int]] = {}
        rows = Sample.objects.filter(step_s=60, at__gte=first, **conditions)
        for at, messages, *key in rows.values_list("at", count, *columns):
            # A group has a row for each of its topics, so rows of a minute are added up.
            line = lines.setdefault(tuple(key), [0] * minutes)
            line[min(int((at - first).total_seconds()) // 60, minutes - 1)] += messages or 0
    return {
        key: _extrapolate(line, (now - last).total_seconds()) for key, line in lines.items()
    }


def _extrapolate(line: list[int], seconds: float) -> list[int]:
    """Replace the last minute, of which `seconds` have passed, by its expected total.

    The first seconds are too few for an estimate, so the minute before is used then.

    >>> _extrapolate([60, 120, 30], 15.0), _extrapolate([60, 120, 30], 3.0)
    ([60, 120, 120], [60, 120, 120])
    >>> _extrapolate([0, 7], 30.0)
    [0, 14]
    """
    last = line[-1] * 60 / seconds if seconds >= SLOT_S else max(line[-2], line[-1])
    return [*line[:-1], round(last)]
