"""Message and byte limits of an answer, shared by all queues that the answer serves."""

from __future__ import annotations

from collections.abc import Collection

from messagestore.engine.messages import ROW_BODY, StoredRow

_ROW_BYTES = 100  # rough size of a message in an answer without its body
_UNKNOWN_ROW_BYTES = 8 * 1024.0  # assumed row size of a queue before its first read
# A SELECT is cut off when its rows exceed the byte budget by this factor, which costs the
# connection. The estimate in Budget.rows may be wrong by this much without that cost.
OVERSHOOT = 2
# Mean row size of each queue in the last read, by queue id. Not locked: it is only an
# estimate.
_row_bytes: dict[int, float] = {}


class Budget:
    """Messages and bytes that still fit into an answer. `empty` until the answer has a
    message.
    """

    def __init__(self, messages: int, size: int) -> None:
        self.messages = messages
        self.size = size
        self.empty = True

    def rows(self, queue: int, available: int) -> int:
        """Return how many rows to read, at least 1, estimated from the queue's last row size."""
        estimate = int(self.size / _row_bytes.get(queue, _UNKNOWN_ROW_BYTES))
        return min(available, self.messages, max(1, estimate))

    def _take(self, queue: int, rows: list[StoredRow]) -> list[StoredRow]:
        """Return the leading rows that fit and subtract them from the budget.

        The first message of an answer is always taken, even if it is larger than the
        budget.
        """
        size = sum([len(row[ROW_BODY]) for row in rows]) + _ROW_BYTES * len(rows)
        if rows:
            _row_bytes[queue] = size / len(rows)
        # Usual case: all rows fit, and no loop over them is needed.
        if size <= self.size:
            self.size -= size
            self.messages -= len(rows)
            self.empty = self.empty and not rows
            return rows
        fitting: list[StoredRow] = []
        for row in rows:
            size = len(row[ROW_BODY]) + _ROW_BYTES
            # Without this exception a message larger than `max_bytes` would block its
            # queue.
            if size > self.size and not self.empty:
                self.size = 0
                break
            fitting.append(row)
            self.size -= size
            self.empty = False
        self.messages -= len(fitting)
        return fitting

    def choose(
        self, queue: int, rows: list[StoredRow], *, filtered: bool
    ) -> tuple[list[StoredRow], int]:
        """Return the rows that fit, and the number of rows before the first that does not.

        With `filtered`, rows without a body did not match the group's filter. They are
        passed over and count in the second figure, so that the position moves past them.
        """
        if not filtered:
            fitting = self._take(queue, rows)
            return fitting, len(fitting)
        with_body = [
            (index, row) for index, row in enumerate(rows) if row[ROW_BODY] is not None
        ]
        fitting = self._take(queue, [row for _, row in with_body[: self.messages]])
        if len(fitting) == len(with_body):
            return fitting, len(rows)
        return fitting, with_body[len(fitting)][0]

    def spent(self) -> bool:
        return self.messages <= 0 or self.size <= 0


def evict_except(queues: Collection[int]) -> None:
    """Forget the row sizes of all queues but these."""
    for queue in list(_row_bytes):
        if queue not in queues:
            _row_bytes.pop(queue, None)
