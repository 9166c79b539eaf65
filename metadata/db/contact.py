"""Contact with the metadata database: when this broker last had an answer, and when it last
promised to expire no member.

A member whose heartbeat cannot be recorded may continue only while no broker can give its
queues to another member. So a broker that refuses a heartbeat

* promises to expire no member for a session timeout and a second from then on, and
* reports for how long no process of it has had an answer from the database. It cannot have
  expired a member in that time.

A member that has both from every broker is as safe as if its heartbeat had been recorded
(see docs/explanation/groups.md).

All processes of a broker must keep the promise of any of them, so the times are in shared
memory that the master creates before it forks. A process without a master has its own
memory. Each time is a cell of 64 bits, which is written atomically.
"""

from __future__ import annotations

import mmap
import time

SIZE = 3 * 8
HEARD, RECORDED, PROMISED = range(3)
# Time without an answer to any process of a broker after which the database counts as
# away.
SILENT_S = 1.5


class Contact:
    """Times in ns of CLOCK_MONOTONIC, which is the same for all processes of a machine."""

    def __init__(self) -> None:
        self.share(mmap.mmap(-1, SIZE))

    def share(self, memory: mmap.mmap) -> None:
        """Use memory that the other workers of the broker share. Called before the first
        request.
        """
        self._cells = memoryview(memory).cast("q")
        # An earlier life of this broker may have expired members until a moment ago. So
        # silence is counted from now.
        for cell in (HEARD, RECORDED):
            self._cells[cell] = self._cells[cell] or time.monotonic_ns()

    def heard(self) -> None:
        """Note that the database answered."""
        self._cells[HEARD] = time.monotonic_ns()

    def recorded(self) -> None:
        """Note that the database answered and recorded heartbeats."""
        self._cells[HEARD] = self._cells[RECORDED] = time.monotonic_ns()

    def promise(self) -> None:
        """Promise to expire no member for a session timeout from now on."""
        self._cells[PROMISED] = time.monotonic_ns()

    def silent_s(self) -> float:
        """Return the seconds since the database last answered a process of this broker."""
        return self._since_s(HEARD)

    def unrecorded_s(self) -> float:
        """Return the seconds since a process of this broker last recorded heartbeats."""
        return self._since_s(RECORDED)

    def promised_at_s(self) -> float:
        """Return time.monotonic() of the last promise, 0 if there was none."""
        return self._cells[PROMISED] / 1e9

    def _since_s(self, cell: int) -> float:
        return (time.monotonic_ns() - self._cells[cell]) / 1e9


contact = Contact()  # of this process
