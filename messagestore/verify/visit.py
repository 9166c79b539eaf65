"""Access of a run to the nodes: short queries, never two at once, at a limited rate, with
retries.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from messagestore.engine.mysql_session import Session
from messagestore.pool import node_pools
from messagestore.sweeping import Progress
from metadata.errors import NodeUnavailable

T = TypeVar("T")
TRIES = 3
PAUSE_S = 0.5  # before the second try


class ReadShort(NodeUnavailable):
    """A node listed fewer rows than it had counted: some rows exist but were not checked."""


class Visit:
    """The access of a run to the nodes. `rows_per_s` 0 stands for no limit."""

    def __init__(
        self, *, rows_per_s: int, progress: Callable[[Progress], None] | None
    ) -> None:
        self._rows_per_s = rows_per_s
        self._progress = progress
        self._due = time.monotonic()

    def ask(self, node_id: int, question: Callable[[Session], T]) -> T:
        """Run a function that only reads, on a connection borrowed for it, and return its
        result.

        Raises NodeUnavailable if the node fails to answer three times, and db_errors.Final.
        """
        for attempt in range(1, TRIES):
            try:
                return self._asked(node_id, question)
            except NodeUnavailable:
                time.sleep(PAUSE_S * attempt)
        return self._asked(node_id, question)

    def _asked(self, node_id: int, question: Callable[[Session], T]) -> T:
        with node_pools.node(node_id).reading() as session:
            return question(session)

    def throttle(self, rows: int) -> None:
        """Wait for as long as this number of rows takes at the limited rate."""
        if not self._rows_per_s:
            return
        now = time.monotonic()
        self._due = max(self._due + rows / self._rows_per_s, now)
        # No connection is held here, so senders never wait for a verify.
        time.sleep(self._due - now)

    def report_progress(self, step: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(Progress(step, done, total))
