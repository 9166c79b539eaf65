"""Key → slot: a topic has 1,024 fixed slots, and its layout says which queue serves each."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

SLOTS = 1024


def slot_of(key: str) -> int:
    """The slot of a key: CRC-32 of its UTF-8 bytes, modulo 1,024.

    >>> slot_of("42") == zlib.crc32(b"42") % 1024
    True
    """
    return zlib.crc32(key.encode()) % SLOTS


def initial_layout(queue_ids: Sequence[int]) -> tuple[int, ...]:
    """The layout of a new topic: slots dealt to the queues in turn.

    >>> initial_layout([7, 8, 9])[:5]
    (7, 8, 9, 7, 8)
    """
    return tuple(queue_ids[slot % len(queue_ids)] for slot in range(SLOTS))
