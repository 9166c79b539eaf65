"""Progress of a read: a callback after each page, and a line in the log from time to time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from catmq_client.frames.pages import Page

log: logging.Logger = logging.getLogger("catmq_client.frames")

# Interval of the lines in the log, level INFO.
LOG_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """State of a read after a page.

    `bytes` are those of the bodies. `offsets` of `total_offsets` were passed; the total was
    fixed when the read began. With a `limit`, a read may end earlier.
    """

    topic: str
    rows: int
    bytes: int
    offsets: int
    total_offsets: int
    elapsed_s: float


OnProgress: TypeAlias = Callable[[ReadProgress], object]


class ProgressMeter:
    """Counts the rows of a read and reports them."""

    def __init__(
        self, topic: str, total_offsets: int, on_progress: OnProgress | None
    ) -> None:
        self._topic, self._total_offsets = topic, total_offsets
        self._on_progress = on_progress
        self._rows = self._bytes = self._offsets = 0
        self._started_at = self._logged_at = time.monotonic()

    def add(self, page: Page) -> None:
        """Count a page. An exception of the callback ends the read."""
        self._rows += len(page.rows)
        self._bytes += page.body_bytes
        self._offsets += page.passed_offsets
        now = time.monotonic()
        if self._on_progress is not None:
            state = ReadProgress(
                self._topic,
                self._rows,
                self._bytes,
                self._offsets,
                self._total_offsets,
                now - self._started_at,
            )
            self._on_progress(state)
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            log.info("%s", self._line(now))

    def finish(self) -> None:
        """Log the totals of a read that was long enough for a line before."""
        now = time.monotonic()
        if now - self._started_at >= LOG_EVERY_S:
            log.info("%s: complete", self._line(now))

    def _line(self, now: float) -> str:
        elapsed_s = max(now - self._started_at, 0.001)
        return (
            f"{self._topic}: {self._offsets:,} of {self._total_offsets:,} offsets read, "
            f"{self._rows / elapsed_s:,.0f} messages/s, "
            f"{self._bytes / elapsed_s / 1e6:,.1f} MB/s"
        )
