"""The heads that a node cannot honestly fall below, as this process knows them.

A head only rises. A node that answers with a lower one than it was known to have is a
restored backup, or a replica that was promoted without the tail: its next messages would
get offsets that others had, and groups would skip them. What this process stored itself was
durable when it was confirmed. A head that was only read may be ahead of the disk for a
moment, so it counts when it is CERTAIN_AFTER_S old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

CERTAIN_AFTER_S = 3.0  # InnoDB flushes what is visible every second

_guard = threading.Lock()
_certain: dict[int, int] = {}
_recent: dict[int, tuple[int, float]] = {}  # queue → a head that was read, and when


def note_stored(queue: int, head: int) -> None:
    """This process stored messages up to that head, and the node confirmed it."""
    with _guard:
        if head > _certain.get(queue, 0):
            _certain[queue] = head


def note_read(queue: int, head: int) -> None:
    now = time.monotonic()
    with _guard:
        waiting = _recent.get(queue)
        if waiting is None or now - waiting[1] >= CERTAIN_AFTER_S:
            if waiting is not None:
                _certain[queue] = max(_certain.get(queue, 0), waiting[0])
            _recent[queue] = (head, now)


def lowest_head(queue: int) -> int:
    """The lowest head that the queue can have, 0 if nothing is known."""
    head = _certain.get(queue, 0)
    recent = _recent.get(queue)
    if recent is not None and time.monotonic() - recent[1] >= CERTAIN_AFTER_S:
        return max(head, recent[0])
    return head


def evict_except(queues: Collection[int]) -> None:
    with _guard:
        for heads in (_certain, _recent):
            for queue in heads.keys() - queues:
                del heads[queue]


def evict_all() -> None:
    """Knows nothing any more, like a process that has just started."""
    with _guard:
        _certain.clear()
        _recent.clear()
