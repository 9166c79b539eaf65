"""A subscription's delay: its messages are served so long after they were stored, by their node's clock.

Times never fall within a queue, so what is old enough is a prefix of what is there. A pull that meets a
younger message ends before it and says when it will be old enough; the position and the lag are as they are.
"""

from __future__ import annotations

from bisect import bisect_right

from messagestore import tables
from messagestore.engine.messages import ROW_STORED_AT, StoredRow
from messagestore.engine.mysql_session import Session
from metadata.cache import snapshot


def ripe(session: Session, *, group_id: int, queue: int, rows: list[StoredRow]) -> tuple[int, int | None]:
    """Number of a queue's next rows that are old enough for a group, and ms until the one after is."""
    delay_s = snapshot.current().delay_s(group_id, queue)
    if not delay_s or not rows:
        return len(rows), None
    youngest_ms = tables.now_ms(session) - 1000 * delay_s
    count = bisect_right(rows, youngest_ms, key=lambda row: row[ROW_STORED_AT])
    return count, None if count == len(rows) else rows[count][ROW_STORED_AT] - youngest_ms
