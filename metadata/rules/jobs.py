"""States of runs of jobs. Their values are stored."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    RUNNING = "running"  # also after its process died: `seen_at` shows that
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
