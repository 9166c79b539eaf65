"""The heads that a node cannot honestly fall below, as this process knows them.

A head only rises. A node that answers with a lower one than it was known to have is a restored backup, or a
replica that was promoted without the tail: its next messages would get offsets that others had, and groups
would skip them. What this process stored itself was durable when it was confirmed. A head that was only
read may be ahead of the disk for a moment, so it counts when it is RIPE_S old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

RIPE_S = 3.0  # InnoDB flushes what is visible every second

_guard = threading.Lock()
_certain: dict[int, int] = {}
_young: dict[int, tuple[int, float]] = {}  # queue → a head that was read, and when


def stored(queue: int, head: int) -> None:
    """This process stored messages up to that head, and the node confirmed it."""
    with _guard:
        if head > _certain.get(queue, 0):
            _certain[queue] = head


def seen(queue: int, head: int) -> None:
    """Somebody read that head."""
    now = time.monotonic()
    with _guard:
        waiting = _young.get(queue)
        if waiting is None or now - waiting[1] >= RIPE_S:
            if waiting is not None:
                _certain[queue] = max(_certain.get(queue, 0), waiting[0])
            _young[queue] = (head, now)


def known(queue: int) -> int:
    """The lowest head that the queue can have, 0 if nothing is known."""
    head = _certain.get(queue, 0)
    young = _young.get(queue)
    if young is not None and time.monotonic() - young[1] >= RIPE_S:
        return max(head, young[0])
    return head


def keep(queues: Collection[int]) -> None:
    """Forgets the heads of other queues."""
    with _guard:
        for heads in (_certain, _young):
            for queue in heads.keys() - queues:
                del heads[queue]


def forget() -> None:
    """Knows nothing any more, like a process that has just started."""
    with _guard:
        _certain.clear()
        _young.clear()
