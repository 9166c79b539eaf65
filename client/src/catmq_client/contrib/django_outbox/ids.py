"""Ids of outbox messages. The inbox uses them to recognise a message that the outbox stored
twice.
"""

from __future__ import annotations

import hashlib
import uuid

from catmq_client.sending.ids import uuid7

_CHECK_BITS = 32


def new_id(topic: str, key: str | None, body: bytes) -> str:
    """Return a UUIDv7 whose last 32 bits are a checksum of its other bits and of the
    message.
    """
    return str(uuid.UUID(int=_with_checksum(uuid.UUID(uuid7()).int, topic, key, body)))


def is_id_of(text: str, topic: str, key: str | None, body: bytes) -> bool:
    """Return True if an outbox made this id for this message.

    A message that was forwarded with all its headers carries the id of another message. The
    checksum tells them apart. Ids of releases before the checksum are not recognised either.
    """
    try:
        value = uuid.UUID(text).int
    except ValueError:
        return False
    return value == _with_checksum(value, topic, key, body)


def _with_checksum(value: int, topic: str, key: str | None, body: bytes) -> int:
    high_bits = value >> _CHECK_BITS
    digest = hashlib.sha256(f"{high_bits} {topic} {key!r} ".encode() + body).digest()
    return high_bits << _CHECK_BITS | int.from_bytes(digest[: _CHECK_BITS // 8], "big")
