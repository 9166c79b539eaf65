"""Limits of one pull: how many messages and bytes may still be put into its answer."""

from __future__ import annotations

from collections.abc import Collection

from messagestore.engine.messages import ROW_BODY, StoredRow

_ROW_BYTES = 100  # what a message costs in an answer beside its body, roughly
_UNKNOWN_ROW_BYTES = 8 * 1024.0  # assumed of a queue before the first pull
# A SELECT may read so many times what is wanted before it is cut off, at the price of its connection: by so
# much the guess of how many rows to ask for may be wrong.
OVERSHOOT = 2
_row_bytes: dict[int, float] = {}  # of each queue, as the last rows were


class Budget:
    """Messages and bytes that may still be put into the answer."""

    def __init__(self, messages: int, size: int) -> None:
        self.messages = messages
        self.size = size
        self.empty = True

    def rows(self, queue: int, available: int) -> int:
        """Return the number of rows to read, at least one, from what rows of this queue weighed so far."""
        guess = int(self.size / _row_bytes.get(queue, _UNKNOWN_ROW_BYTES))
        return min(available, self.messages, max(1, guess))

    def _take(self, queue: int, rows: list[StoredRow]) -> list[StoredRow]:
        """The rows that fit; a first one that is too large is taken alone."""
        weight = sum([len(row[ROW_BODY]) for row in rows]) + _ROW_BYTES * len(rows)
        if rows:
            _row_bytes[queue] = weight / len(rows)
        if weight <= self.size:
            self.size -= weight
            self.messages -= len(rows)
            self.empty = self.empty and not rows
            return rows
        taken: list[StoredRow] = []
        for row in rows:
            weight = len(row[ROW_BODY]) + _ROW_BYTES
            if weight > self.size and not self.empty:
                self.size = 0
                break
            taken.append(row)
            self.size -= weight
            self.empty = False
        self.messages -= len(taken)
        return taken

    def choose(self, queue: int, rows: list[StoredRow], *, filtered: bool) -> tuple[list[StoredRow], int]:
        """The rows that fit, and how many rows lie before the first one that does not.

        With `filtered` those without a body are passed over.
        """
        if not filtered:
            taken = self._take(queue, rows)
            return taken, len(taken)
        with_body = [(index, row) for index, row in enumerate(rows) if row[ROW_BODY] is not None]
        taken = self._take(queue, [row for _, row in with_body[: self.messages]])
        return taken, with_body[len(taken)][0] if len(taken) < len(with_body) else len(rows)

    def spent(self) -> bool:
        return self.messages <= 0 or self.size <= 0


def evict_except(queues: Collection[int]) -> None:
    for queue in list(_row_bytes):
        if queue not in queues:
            _row_bytes.pop(queue, None)
