"""Reports of this process that heartbeats carry: threads, messages in memory, counts, the
slowest handler.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from catmq_client.errors import CatmqError, InvalidRequest

# The field of the heartbeat's request.
FIELD = "report"
# How long nothing is reported after a broker refused it: it is of an earlier release than
# others.
PAUSE_S = 60.0


class AtWork(NamedTuple):
    """The application is at work on a message, or a batch that begins with it; `since` is
    monotonic.
    """

    since: float
    queue: int
    offset: int


class Process(Protocol):
    """A consumer as its report sees it."""

    threads: int
    buffered: int
    buffered_bytes: int
    finished: int
    failed: int

    def at_work(self) -> Sequence[AtWork]: ...


class ProcessReports:
    """Adds a report to a heartbeat when it is time; for one thread.

    Brokers of an earlier release refuse the field. So there is none before an answer has
    asked for it, and none for a while after a refusal: while brokers are upgraded, another
    one may answer.
    """

    def __init__(self, state: Process) -> None:
        self._state = state
        self._every_s: float | None = None
        self._next_at = 0.0

    def add_to(self, body: dict[str, Any]) -> None:
        """Add what is due, under the lock of the consumer."""
        now = time.monotonic()
        if self._every_s is not None and now >= self._next_at:
            body[FIELD] = report(self._state, now)

    def follow(self, answer: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        """Note how often the broker that took `body` wants a report."""
        every_ms = answer.get("report_every_ms")
        self._every_s = None if every_ms is None else every_ms / 1000
        if FIELD in body and self._every_s is not None:
            self._next_at = time.monotonic() + self._every_s

    def was_refused(self, error: CatmqError) -> bool:
        """Return True if a heartbeat was refused for its report alone; the next ones have
        none.
        """
        refused = isinstance(error, InvalidRequest) and bool(error.errors)
        if not refused or not all(one.field.split(".")[0] == FIELD for one in error.errors):
            return False
        self._next_at = time.monotonic() + PAUSE_S
        return True


def report(state: Process, now: float) -> dict[str, Any]:
    """Return the report on a consumer, under its lock; `now` is monotonic."""
    at_work = state.at_work()
    found: dict[str, Any] = {
        "threads": state.threads,
        "busy": len(at_work),
        "buffered": state.buffered,
        "buffered_bytes": state.buffered_bytes,
        "handled": state.finished,
        "failed": state.failed,
    }
    if at_work:
        oldest = min(at_work)
        running_ms = max(0, round(1000 * (now - oldest.since)))
        found["slowest"] = {
            "queue": oldest.queue,
            "offset": oldest.offset,
            "running_ms": running_ms,
        }
    return found
