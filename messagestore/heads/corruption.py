"""Queues that contradict themselves, as this process has met them.

A corrupt queue delivers nothing past its hole and takes no batch over it; a person must look. It is reported
in the log (at most once a minute), in `/readyz`, in the metrics and as an alarm (corruption_alarms.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, field

log = logging.getLogger(__name__)
_REPEAT_S = 60.0
_NEVER = float("-inf")


@dataclass(slots=True)
class Mark:
    """Damage to a queue, and the offset where it is; None: wherever one looks. Times: time.monotonic."""

    offset: int | None
    why: str
    met_at: float = field(default_factory=time.monotonic)
    told_at: float = _NEVER  # when it last became an alarm


_reported: dict[int, Mark] = {}
_logged: dict[int, float] = {}


def report(queue: int, *, offset: int | None, why: str) -> None:
    """Mark a queue at an offset and say why."""
    mark = Mark(offset, why)
    if mark.met_at - _logged.get(queue, _NEVER) >= _REPEAT_S:
        where = "" if offset is None else f" at offset {offset}"
        log.error("Queue %d is corrupt%s: %s", queue, where, why)
        _logged[queue] = mark.met_at
    if (known := _reported.get(queue)) is not None:
        mark.told_at = known.told_at
    _reported[queue] = mark


def delivered(queue: int, *, next_offset: int) -> None:
    """Take the mark back once messages beyond the marked offset were delivered."""
    mark = _reported.get(queue)
    if mark is not None and mark.offset is not None and next_offset > mark.offset:
        _reported.pop(queue, None)


def clear(queue: int, mark: Mark) -> None:
    """Take a mark back, unless the queue was reported again meanwhile."""
    if _reported.get(queue) is mark:
        _reported.pop(queue, None)


def marks() -> dict[int, Mark]:
    """Queue → what is wrong with it."""
    return dict(_reported)


def evict_except(queues: Collection[int]) -> None:
    for known in (_reported, _logged):
        for queue in list(known):
            if queue not in queues:
                known.pop(queue, None)


def current() -> list[int]:
    return sorted(_reported)
