"""Ends of leases in memory that the workers of a broker share. Until a lease ends, no
worker needs to ask the metadata database for it.

The master creates the memory before it forks. A process without a master always asks the
database. Cells are read and written singly, without a lock. That is safe, because a
lease only avoids double work, and a lost write only costs another query.
"""

from __future__ import annotations

import hashlib
import mmap
import time

ROWS = 1 << 10
SIZE = ROWS * 2 * 8


class LeaseEnds:
    """The time at which the lease of a worker of this broker ends, by name of the lease, in
    time.monotonic_ns(). 0 if no worker has it.

    A row has two cells: a hash of the lease's name, and its end. If two names share a row,
    the second lease is not stored while the first is held.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._cells = memoryview(memory).cast("q")

    def end(self, name: str) -> int:
        row, name_hash = self._row(name)
        return self._cells[row + 1] if self._cells[row] == name_hash else 0

    def note(self, name: str, end: int) -> None:
        row, name_hash = self._row(name)
        if self._cells[row] == name_hash or self._cells[row + 1] < time.monotonic_ns():
            self._cells[row], self._cells[row + 1] = name_hash, end

    @staticmethod
    def _row(name: str) -> tuple[int, int]:
        name_hash = int.from_bytes(
            hashlib.blake2b(name.encode(), digest_size=8).digest(), signed=True
        )
        return 2 * (name_hash % ROWS), name_hash
