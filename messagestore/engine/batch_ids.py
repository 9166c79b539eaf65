"""Ids of batches: UUID version 7 (RFC 9562), so that they land side by side in
`sent_batch`'s primary key.
"""

from __future__ import annotations

import os
import time
from uuid import UUID

from metadata.errors import Invalid
from metadata.rules.topics.routing_rules import as_uuid7


def new() -> UUID:
    """A fresh id. The wall clock only chooses the place in the index; nothing is decided by
    it.
    """
    return UUID(bytes=as_uuid7(time.time_ns() // 1_000_000, os.urandom(10)))


def check(batch_id: UUID) -> UUID:
    """The id itself. Raises Invalid unless it is of version 7: random ids would cost a
    random read each.
    """
    if batch_id.version != 7:
        raise Invalid.field(
            "batch_id",
            f"{batch_id} is not a UUID of version 7; its first 48 bits are the time in ms",
        )
    return batch_id


def time_ms(batch_id: UUID) -> int:
    """Return when an id was made, by the clock of whoever made it; ms since 1970.

    >>> time_ms(UUID("0190163d-8694-739b-aea5-966c26f8ad91"))
    1718360049300
    """
    return batch_id.int >> 80
