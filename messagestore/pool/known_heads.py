"""The lowest log end offsets that queues can have, as far as this process knows.

A log end offset (head) only rises. If a node reports a lower head than it had before, it is
a restored backup, or a replica that was promoted without the last messages. Its next
messages would get offsets that other messages had, and groups would skip them.

Heads of messages that this process stored are certain: they were durable when the node
confirmed them. A head that was only read may not be on disk yet, so it counts
CERTAIN_AFTER_S after it was read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

CERTAIN_AFTER_S = 3.0  # InnoDB flushes visible commits once a second

_guard = threading.Lock()
_certain: dict[int, int] = {}
_recent: dict[int, tuple[int, float]] = {}  # queue → (head, time.monotonic() of the read)


def note_stored(queue: int, head: int) -> None:
    """Record the head after messages that this process stored and the node confirmed."""
    with _guard:
        if head > _certain.get(queue, 0):
            _certain[queue] = head


def note_read(queue: int, head: int) -> None:
    """Record a head that was read; it becomes certain after CERTAIN_AFTER_S."""
    now = time.monotonic()
    with _guard:
        recent = _recent.get(queue)
        # A single pending head per queue is enough. A newer head replaces it only when it has
        # become certain, or a busy queue would never get a certain head.
        if recent is None or now - recent[1] >= CERTAIN_AFTER_S:
            if recent is not None:
                _certain[queue] = max(_certain.get(queue, 0), recent[0])
            _recent[queue] = (head, now)


def lowest_head(queue: int) -> int:
    """Return the lowest head that the queue can have, 0 if nothing is known."""
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
    """Forget everything, like a process that has just started; for tests."""
    with _guard:
        _certain.clear()
        _recent.clear()
