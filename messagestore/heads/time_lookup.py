"""Offsets by time: what is stored later lies higher in a queue, so halving finds it, without an index."""

from __future__ import annotations

from messagestore.engine.mysql_session import Session
from messagestore.tables import message_sql


def first_at(session: Session, *, queue: int, bounds: tuple[int, int], at_ms: int) -> int:
    """The first offset in bounds stored at or after a time, or the end of the bounds."""
    low, high = bounds
    while low < high:
        middle = (low + high) // 2
        stored_at = message_sql.stored_at_ms(session, queue=queue, offset=middle)
        if stored_at is not None and stored_at < at_ms:
            low = middle + 1
        else:
            high = middle
    return low
