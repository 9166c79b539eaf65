"""Choice of the queue for a message. All rules are pure functions, so every broker chooses
the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from uuid import UUID

from metadata.rules.topics.slots import slot_of


def queue_for_key(key: str, layout: Sequence[int]) -> int:
    return layout[slot_of(key)]


@lru_cache(256)  # of the batches that are being sent: each asks several times
def order_queues(batch_id: UUID, queues: tuple[int, ...]) -> tuple[int, ...]:
    """Return the queues in the order in which a batch without a key should try them.

    Rendezvous hashing: the order of two queues does not depend on which others exist.
    """
    # The usual case needs no hash.
    if len(queues) == 1:
        return queues
    seed = batch_id.bytes
    return tuple(
        sorted(
            set(queues),
            key=lambda queue: (
                hashlib.sha256(seed + queue.to_bytes(8, "big")).digest(),
                queue,
            ),
        )
    )


def derived_batch_id(batch_id: UUID, part: int) -> UUID:
    """Return the id of a part of a batch, by its number: version 7, the time of
    `batch_id`, the rest a hash.

    >>> parent = UUID("0190163d-8694-739b-aea5-966c26f8ad91")
    >>> derived_batch_id(parent, 5).version, str(derived_batch_id(parent, 5))[:13]
    (7, '0190163d-8694')
    """
    digest = hashlib.sha256(batch_id.bytes + part.to_bytes(8, "big")).digest()
    return UUID(bytes=as_uuid7(batch_id.int >> 80, digest))


def as_uuid7(at_ms: int, rest: bytes) -> bytes:
    """Return a UUID of version 7 from a time in ms since 1970 and the first ten bytes of
    `rest`.

    >>> as_uuid7(1, bytes(32)).hex()
    '00000000000170008000000000000000'
    """
    raw = bytearray((at_ms & (1 << 48) - 1).to_bytes(6, "big") + rest[:10])
    # Version 7 and the variant bits of RFC 9562.
    raw[6] = raw[6] & 0x0F | 0x70
    raw[8] = raw[8] & 0x3F | 0x80
    return bytes(raw)
