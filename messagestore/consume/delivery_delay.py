"""Delivery delay of a subscription: messages are served a fixed time after they were
stored.

Ages are by the clock of the queue's node. `stored_at` never falls within a queue, so the
messages that are old enough are a prefix of the rows that were read. A pull ends before the
first younger message and returns the time until that message is due. The delay changes
neither the position nor the lag.
"""

from __future__ import annotations

from bisect import bisect_right

from messagestore.engine.messages import ROW_STORED_AT, StoredRow
from messagestore.engine.mysql_session import Session
from messagestore.tables import node_sql
from metadata.cache import snapshot


def youngest_ms(session: Session, *, group_id: int, queue: int) -> int | None:
    """Return the latest `stored_at` in ms that a group may receive, or None if it has no
    delay.
    """
    # By the node's clock, not the broker's: `stored_at` is written by the node.
    delay_s = snapshot.current().delay_s(group_id, queue)
    return node_sql.now_ms(session) - 1000 * delay_s if delay_s else None


def due(rows: list[StoredRow], *, youngest_ms: int | None) -> tuple[int, int | None]:
    """Return the number of leading rows that are due, and the ms until the next row is due.

    The second figure is None if all rows are due.
    """
    if youngest_ms is None or not rows:
        return len(rows), None
    count = bisect_right(rows, youngest_ms, key=lambda row: row[ROW_STORED_AT])
    return count, None if count == len(rows) else rows[count][ROW_STORED_AT] - youngest_ms
