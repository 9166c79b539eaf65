"""Lines of lists: what went through topics and groups in each of the last minutes."""

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
    """Topic → messages sent to it in each of the last minutes, oldest first: lines of a
    list.
    """
    lines = _lines(("topic_ref",), minutes, topic_ref__in=list(topic_ids), group_ref=0)
    return {topic: line for (topic,), line in lines.items()}


def handled_by_group(
    *, group_ids: Iterable[int], minutes: int = 30
) -> dict[int, list[int]]:
    """Group → messages it handled in each of the last minutes, oldest first."""
    lines = _lines(("group_ref",), minutes, "handled", group_ref__in=list(group_ids))
    return {group: line for (group,), line in lines.items()}


def handled_by_subscription(
    *, pairs: Collection[tuple[int, int]], minutes: int = 30
) -> dict[tuple[int, int], list[int]]:
    """(Group, topic) → messages that the group handled of the topic in each of the last
    minutes.
    """
    groups, topics = {group for group, _topic in pairs}, {topic for _group, topic in pairs}
    which = {"group_ref__in": groups, "topic_ref__in": topics}
    lines = _lines(("group_ref", "topic_ref"), minutes, "handled", **which)
    return {(group, topic): line for (group, topic), line in lines.items()}


def _lines(
    by: tuple[str, ...], minutes: int, count: str = "messages", **which: Any
) -> dict[tuple[int, ...], list[int]]:
    """Return what rows of the last minutes count, by some columns.

    The minute that is not over counts for as much as it will be if it goes on like this;
    its first seconds say too little, so the one before stands for it then.
    """
    with reachable():
        now = database_now()
        last = start_of_step(now, step_s=60)
        first = last - timedelta(minutes=minutes - 1)
        found: dict[tuple[int, ...], list[int]] = {}
        rows = Sample.objects.filter(step_s=60, at__gte=first, **which)
        for at, messages, *whose in rows.values_list("at", count, *by):
            line = found.setdefault(tuple(whose), [0] * minutes)
            line[min(int((at - first).total_seconds()) // 60, minutes - 1)] += messages or 0
    return {
        whose: _finished(line, (now - last).total_seconds())
        for whose, line in found.items()
    }


def _finished(line: list[int], seconds: float) -> list[int]:
    """A line whose last minute is `seconds` old.

    >>> _finished([60, 120, 30], 15.0), _finished([60, 120, 30], 3.0)
    ([60, 120, 120], [60, 120, 120])
    >>> _finished([0, 7], 30.0)
    [0, 14]
    """
    last = line[-1] * 60 / seconds if seconds >= SLOT_S else max(line[-2], line[-1])
    return [*line[:-1], round(last)]
