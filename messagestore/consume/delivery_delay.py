"""A subscription's delay: its messages are served so long after they were stored, by their node's clock.

Times never fall within a queue, so what is old enough is a prefix of what is there. A pull that meets a
younger message ends before it and says when it will be old enough; the position and the lag are as they are.
"""

from __future__ import annotations

from bisect import bisect_right

from messagestore.engine.messages import ROW_STORED_AT, StoredRow
from messagestore.engine.mysql_session import Session
from messagestore.tables import node_sql
from metadata.cache import snapshot


def youngest_ms(session: Session, *, group_id: int, queue: int) -> int | None:
    """Return when the youngest message that a group gets of a queue was stored; None: it gets all."""
    delay_s = snapshot.current().delay_s(group_id, queue)
    return node_sql.now_ms(session) - 1000 * delay_s if delay_s else None


def due(rows: list[StoredRow], *, youngest_ms: int | None) -> tuple[int, int | None]:
    """Number of a queue's next rows that are old enough, and ms until the one after is."""
    if youngest_ms is None or not rows:
        return len(rows), None
    count = bisect_right(rows, youngest_ms, key=lambda row: row[ROW_STORED_AT])
    return count, None if count == len(rows) else rows[count][ROW_STORED_AT] - youngest_ms
