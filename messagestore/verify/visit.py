"""Visits of a run to the nodes: one short question at a time, at a limited rate, patient
for a moment.
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
    """A node listed fewer rows than it had counted: so many are there, and were not looked
    at.
    """


class Visit:
    """A run's way to the nodes. `rows_per_s` = 0: as fast as they answer."""

    def __init__(
        self, *, rows_per_s: int, progress: Callable[[Progress], None] | None
    ) -> None:
        self._rows_per_s = rows_per_s
        self._progress = progress
        self._due = time.monotonic()

    def ask(self, node_id: int, question: Callable[[Session], T]) -> T:
        """The answer to a question that only reads, on a connection borrowed for it.

        Raises NodeUnavailable when the node does not answer three times, and
        db_errors.Final.
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

    def spent(self, rows: int) -> None:
        """Waits, without a connection, as long as so many rows take at the limited rate."""
        if not self._rows_per_s:
            return
        now = time.monotonic()
        self._due = max(self._due + rows / self._rows_per_s, now)
        time.sleep(self._due - now)

    def say(self, what: str, done: int, total: int) -> None:
        """Tell whoever listens how far the run is."""
        if self._progress is not None:
            self._progress(Progress(what, done, total))
