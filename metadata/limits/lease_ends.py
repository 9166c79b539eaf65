"""Ends of leases that the workers of one broker tell each other: until then nobody else
needs to ask.

The master makes the memory before it forks; a process without one always asks. Cells are
read and written one at a time, without a lock. A lease only saves double work, and what is
lost here costs a question more.
"""

from __future__ import annotations

import hashlib
import mmap
import time

ROWS = 1 << 10
SIZE = ROWS * 2 * 8


class LeaseEnds:
    """The time until which a worker of this broker has each lease, as a
    time.monotonic_ns(); 0 if none has.

    A row of two cells holds a number for the lease's name, and its end. Of two names that
    meet in a row one is not shared while the other is held.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._cells = memoryview(memory).cast("q")

    def end(self, name: str) -> int:
        row, number = self._row(name)
        return self._cells[row + 1] if self._cells[row] == number else 0

    def note(self, name: str, end: int) -> None:
        row, number = self._row(name)
        if self._cells[row] == number or self._cells[row + 1] < time.monotonic_ns():
            self._cells[row], self._cells[row + 1] = number, end

    @staticmethod
    def _row(name: str) -> tuple[int, int]:
        number = int.from_bytes(
            hashlib.blake2b(name.encode(), digest_size=8).digest(), signed=True
        )
        return 2 * (number % ROWS), number
