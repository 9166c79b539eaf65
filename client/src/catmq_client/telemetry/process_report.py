"""The report about the consumer's process that heartbeats carry.

It has threads, messages in memory, counts, and the handler that has run longest.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from catmq_client.errors import CatmqError, InvalidRequest

# Field of the heartbeat's request body.
FIELD = "report"
# Time without reports after a broker of an earlier release refused a report.
PAUSE_S = 60.0


class AtWork(NamedTuple):
    """A message, or the first of a batch, that a handler has worked on since `since`."""

    since: float
    queue: int
    offset: int


class Process(Protocol):
    """The fields of a consumer that its report needs."""

    threads: int
    buffered: int
    buffered_bytes: int
    finished: int
    failed: int

    def at_work(self) -> Sequence[AtWork]: ...


class ProcessReports:
    """Adds a report to a heartbeat when it is due. Used by a single thread.

    Brokers of an earlier release refuse the field. So no report is sent before an answer
    has asked for it, and none for PAUSE_S after a refusal: during an upgrade, brokers of
    both releases answer.
    """

    def __init__(self, state: Process) -> None:
        self._state = state
        self._every_s: float | None = None
        self._next_at = 0.0

    def add_to(self, body: dict[str, Any]) -> None:
        """Add the report to the body of a heartbeat if it is due.

        The caller holds the consumer's lock.
        """
        now = time.monotonic()
        if self._every_s is not None and now >= self._next_at:
            body[FIELD] = report(self._state, now)

    def follow(self, answer: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        """Note how often the broker that accepted `body` wants a report."""
        every_ms = answer.get("report_every_ms")
        # A broker of an earlier release leaves the field out: then reports stop.
        self._every_s = None if every_ms is None else every_ms / 1000
        if FIELD in body and self._every_s is not None:
            self._next_at = time.monotonic() + self._every_s

    def was_refused(self, error: CatmqError) -> bool:
        """Return True if a heartbeat was refused for its report alone; pause reports then."""
        fields = {wrong.field.split(".")[0] for wrong in error.errors}
        if not isinstance(error, InvalidRequest) or fields != {FIELD}:
            return False
        self._next_at = time.monotonic() + PAUSE_S
        return True


def report(state: Process, now: float) -> dict[str, Any]:
    """Return the report on a consumer. Caller holds its lock. `now` is monotonic."""
    at_work = state.at_work()
    fields: dict[str, Any] = {
        "threads": state.threads,
        "busy": len(at_work),
        "buffered": state.buffered,
        "buffered_bytes": state.buffered_bytes,
        "handled": state.finished,
        "failed": state.failed,
    }
    if at_work:
        # Tuples compare by `since` first.
        oldest = min(at_work)
        fields["slowest"] = {
            "queue": oldest.queue,
            "offset": oldest.offset,
            "running_ms": max(0, round(1000 * (now - oldest.since))),
        }
    return fields
