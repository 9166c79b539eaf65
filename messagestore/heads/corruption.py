"""Corrupt queues that this process has met.

A corrupt queue delivers nothing past its damage and stores no batch across it. An operator
must act. The queue is reported in the log (at most once a minute), in `/readyz`, in the
metrics and as an alarm (corruption_alarms.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, field

log = logging.getLogger(__name__)
_REPEAT_S = 60.0  # pause between two log lines about the same queue
_NEVER = float("-inf")


@dataclass(slots=True)
class Mark:
    """Damage of a queue; `offset` is None if it is of the whole queue. Times:
    time.monotonic().
    """

    offset: int | None
    why: str
    met_at: float = field(default_factory=time.monotonic)
    told_at: float = _NEVER  # when it last became an alarm


_reported: dict[int, Mark] = {}
_logged: dict[int, float] = {}


def report(queue: int, *, offset: int | None, why: str) -> None:
    """Mark a queue as corrupt, at an offset or (None) as a whole, and log the reason."""
    mark = Mark(offset, why)
    if mark.met_at - _logged.get(queue, _NEVER) >= _REPEAT_S:
        where = "" if offset is None else f" at offset {offset}"
        log.error("Queue %d is corrupt%s: %s", queue, where, why)
        _logged[queue] = mark.met_at
    # The time of the last alarm is kept, so that a repeated report raises no second alarm.
    if (earlier := _reported.get(queue)) is not None:
        mark.told_at = earlier.told_at
    _reported[queue] = mark


def delivered(queue: int, *, next_offset: int) -> None:
    """Remove the mark of a queue if messages above its offset were delivered."""
    mark = _reported.get(queue)
    if mark is not None and mark.offset is not None and next_offset > mark.offset:
        _reported.pop(queue, None)


def clear(queue: int, mark: Mark) -> None:
    """Remove a mark, unless the queue was reported again meanwhile."""
    if _reported.get(queue) is mark:
        _reported.pop(queue, None)


def marks() -> dict[int, Mark]:
    return dict(_reported)


def evict_except(queues: Collection[int]) -> None:
    for memory in (_reported, _logged):
        for queue in list(memory):
            if queue not in queues:
                memory.pop(queue, None)


def current() -> list[int]:
    """Return the ids of the corrupt queues, in rising order."""
    return sorted(_reported)
