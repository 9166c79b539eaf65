"""Queues that contradict themselves, as this process has met them.

A suspect queue delivers nothing past its hole and takes no batch over it; a person must look. It is
reported in the log (at most once a minute), in `/readyz`, in the metrics, and as an alarm that people end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from metadata import alarms, snapshot

log = logging.getLogger(__name__)
_REPEAT_S = 60.0
_reported: dict[int, int] = {}  # queue → the offset that is missing or wrong
_logged: dict[int, float] = {}
_told: dict[int, int] = {}  # queue → the offset for which there is an alarm


def report(queue: int, *, offset: int, why: str) -> None:
    """Marks a queue at an offset and says why."""
    now = time.monotonic()
    if now - _logged.get(queue, -_REPEAT_S) >= _REPEAT_S:
        log.error("Queue %d is suspect at offset %d: %s", queue, offset, why)
        _logged[queue] = now
    _reported[queue] = offset


def tell() -> None:
    """Raises an alarm for each; a loop of every worker. Raises MetadataUnavailable."""
    known = snapshot.current()
    for queue, offset in list(_reported.items()):
        info = known.queues.get(queue)
        if info is not None and _told.get(queue) != offset:
            detail = f"at offset {offset}: see manage.py verify"
            alarms.raise_alarm(
                kind="suspect", name=f"{known.topics[info.topic_id].name}/{queue}", detail=detail
            )
            _told[queue] = offset


def delivered(queue: int, *, next_offset: int) -> None:
    """Takes the mark back once messages beyond the marked offset were delivered."""
    if queue in _reported and next_offset > _reported[queue]:
        del _reported[queue]
        _told.pop(queue, None)


def keep(queues: Collection[int]) -> None:
    """Forgets other queues."""
    for known in (_reported, _logged, _told):
        for queue in list(known):
            if queue not in queues:
                known.pop(queue, None)


def current() -> list[int]:
    """The suspect queues, rising."""
    return sorted(_reported)
