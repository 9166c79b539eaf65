"""Find offsets by time, by binary search: `stored_at` never falls within a queue."""

from __future__ import annotations

from messagestore.engine.mysql_session import Session
from messagestore.tables import message_sql


def first_at(session: Session, *, queue: int, bounds: tuple[int, int], at_ms: int) -> int:
    """Return the first offset within bounds that was stored at or after a time, else their
    end.
    """
    low, high = bounds
    while low < high:
        middle = (low + high) // 2
        stored_at = message_sql.read_stored_at_ms(session, queue=queue, offset=middle)
        if stored_at is not None and stored_at < at_ms:
            low = middle + 1
        else:
            high = middle
    return low
