"""The time when this broker last heard from the metadata database, and its promises since.

A member whose heartbeat cannot be recorded may go on only while nobody can take its queues.
So a broker that refuses a heartbeat promises something: from then on it expires nobody for
a session timeout and a second. It also says for how long no process of it has heard from
the database: it cannot have expired anybody in that time. A member that has both from every
broker is as safe as if its heartbeat had been recorded (see docs/explanation/groups.md).

All processes of a broker must keep the promise that one of them gave, so the times lie in
memory that the master makes before it forks; a process without a master has its own. Each
is one cell of 64 bits, written whole.
"""

from __future__ import annotations

import mmap
import time

SIZE = 3 * 8
HEARD, RECORDED, PROMISED = range(3)
# so long without an answer to any process of a broker, and the database counts as away
SILENT_S = 1.5


class Contact:
    """Times of CLOCK_MONOTONIC, which all processes of a machine share."""

    def __init__(self) -> None:
        self.share(mmap.mmap(-1, SIZE))

    def share(self, memory: mmap.mmap) -> None:
        """Share the times with the other workers of the broker; called before the first
        request.
        """
        self._cells = memoryview(memory).cast("q")
        # An earlier life of this broker may have heard something until now.
        for cell in (HEARD, RECORDED):
            self._cells[cell] = self._cells[cell] or time.monotonic_ns()

    def heard(self) -> None:
        self._cells[HEARD] = time.monotonic_ns()

    def recorded(self) -> None:
        self._cells[HEARD] = self._cells[RECORDED] = time.monotonic_ns()

    def promise(self) -> None:
        """Nobody is to be expired for a session from now on."""
        self._cells[PROMISED] = time.monotonic_ns()

    def silent_s(self) -> float:
        """Seconds since the database last answered any process of this broker."""
        return self._since_s(HEARD)

    def unrecorded_s(self) -> float:
        """Seconds since any process of this broker last recorded heartbeats."""
        return self._since_s(RECORDED)

    def promised_at_s(self) -> float:
        """time.monotonic() of the last promise, 0 if there was none."""
        return self._cells[PROMISED] / 1e9

    def _since_s(self, cell: int) -> float:
        return (time.monotonic_ns() - self._cells[cell]) / 1e9


contact = Contact()  # of this process
