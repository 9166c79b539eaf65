"""Queues that contradict themselves, as this process has met them.

A suspect queue delivers nothing past its hole and takes no batch over it; a person must look. It is
reported in the log (at most once a minute), in `/readyz` and in the metrics.
"""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)
_REPEAT_S = 60.0
_reported: dict[int, float] = {}


def report(queue: int, why: str) -> None:
    """Marks a queue and says why."""
    now = time.monotonic()
    if now - _reported.get(queue, -_REPEAT_S) >= _REPEAT_S:
        log.error("Queue %d is suspect: %s", queue, why)
    _reported[queue] = now


def clear(queue: int) -> None:
    """Takes the mark back once the queue delivered again."""
    _reported.pop(queue, None)


def current() -> list[int]:
    """The suspect queues, rising."""
    return sorted(_reported)
