"""Ids of batches: UUID version 7 (RFC 9562).

They begin with the time, so that batches sent in succession are neighbours in the
primary key of `sent_batch`.
"""

from __future__ import annotations

import os
import time
from uuid import UUID

from metadata.errors import Invalid
from metadata.rules.topics.routing_rules import as_uuid7


def new() -> UUID:
    """Return a new batch id. Its time only orders the index; no decision depends on it."""
    return UUID(bytes=as_uuid7(time.time_ns() // 1_000_000, os.urandom(10)))


def check(batch_id: UUID) -> UUID:
    """Return the id. Raises Invalid if it is not a UUID of version 7."""
    # A random id would cost a random page read of the index for each batch.
    if batch_id.version != 7:
        raise Invalid.field(
            "batch_id",
            f"{batch_id} is not a UUID of version 7; its first 48 bits are the time in ms",
        )
    return batch_id


def time_ms(batch_id: UUID) -> int:
    """Return when the client made the id, in ms since 1970 by the client's clock.

    >>> time_ms(UUID("0190163d-8694-739b-aea5-966c26f8ad91"))
    1718360049300
    """
    return batch_id.int >> 80
