"""Identifiers made by the client."""

from __future__ import annotations

import os
import time
import uuid


def uuid7() -> str:
    """A UUIDv7 (RFC 9562): 48 bits of milliseconds, then random.

    Batch ids are v7 because brokers keep them in a table by primary key: ids that rise with
    time fall on pages that are already in memory, random ones each cost a read.
    """
    random_bits = int.from_bytes(os.urandom(10), "big")
    value = (time.time_ns() // 1_000_000) << 80 | random_bits
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))
