"""Identifiers made by the client."""

from __future__ import annotations

import os
import time
import uuid


def uuid7() -> str:
    """Return a new UUIDv7 (RFC 9562): 48 bits of milliseconds, then random bits.

    Batch ids are v7 because brokers keep them in a table by primary key. Ids that rise with
    time fall on pages that are already in memory; random ids each cost a read.
    """
    random_bits = int.from_bytes(os.urandom(10), "big")
    value = (time.time_ns() // 1_000_000) << 80 | random_bits
    # version 7
    value = value & ~(0xF << 76) | 0x7 << 76
    # variant of RFC 9562
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))
