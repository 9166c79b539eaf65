"""Reports failed messages, so that the broker stores each for a later retry before it
counts as done here.

Handlers do not wait for it: a report is queued, sent together with others, and only its
answer finishes the message. Until then no commit passes it. What a node cannot take now is
repeated, in a thread of its own, so that other queues' reports do not wait; a message of a
queue that went to another member is repeated there.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from catmq_client.errors import CatmqError, HandlerFailed
from catmq_client.http.backoff import delay_s
from catmq_client.http.transport import Transport
from catmq_client.message import Message
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.part import ErrorHandler, Part
from catmq_client.reading.state import GroupState

log = logging.getLogger("catmq.consumer")

# What brokers take in one request, and keep of an error's text.
MOST_MESSAGES = 1_000
MOST_ERROR_CHARS = 2_000
# Longest pause before a report is repeated, and how long there may be nothing to do.
PAUSE_S = 5.0
IDLE_S = 60.0


@dataclass(eq=False, slots=True)
class Report:
    """A failed message. Whatever becomes of the request, its repeat says the same."""

    owned: OwnedQueue
    offset: int
    version: int
    error: str
    # What is to become of it, if not its next retry after the subscription's delay.
    fate: dict[str, Any]
    first_failed_at_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    tries: int = 0
    not_before: float = 0.0

    def __str__(self) -> str:
        return f"{self.owned} offset {self.offset}"

    def view(self) -> dict[str, Any]:
        owned = self.owned
        view: dict[str, Any] = {
            "queue": owned.queue,
            "offset": self.offset,
            **owned.fence(),
        }
        return (
            view
            | {"error": self.error, "first_failed_at_ms": self.first_failed_at_ms}
            | self.fate
        )


class Reporter(Part):
    """Reports for one consumer; its two threads begin with the first failure."""

    def __init__(
        self, *, transport: Transport, state: GroupState, handle_error: ErrorHandler
    ) -> None:
        super().__init__(transport=transport, state=state, handle_error=handle_error)
        self._started = False
        self._new: deque[Report] = deque()
        self._again: list[Report] = []
        # Under way for the first time, and for a later one.
        self._sending = 0
        self._repeating = 0

    def add(self, owned: OwnedQueue, message: Message, error: object, **fate: Any) -> None:
        """Queue a report; the message is done once it is answered.

        `fate`: last=True if its retries are used up in place; in a share group final=True
        makes it a dead letter, too, and delay_ms comes before the next delivery.
        """
        text = (
            f"{type(error).__name__}: {error}"
            if isinstance(error, BaseException)
            else str(error or "")
        )
        # No codec writes half of a surrogate pair; the report would be repeated without
        # end.
        text = text.encode(errors="replace").decode()
        with self._state.changed:
            if message.failed:
                return
            message.failed = True
            owned.report(message.offset)
            fate = {
                name: value
                for name, value in fate.items()
                if value is not None and value is not False
            }
            report = Report(
                owned, message.offset, owned.version, text[:MOST_ERROR_CHARS], fate
            )
            self._new.append(report)
            self._start()
            self._state.changed.notify_all()

    def settle_new(self, within_s: float) -> bool:
        """Wait until every report was tried once; return True if that came about in time."""
        with self._state.changed:
            return self._state.changed.wait_for(
                lambda: not self._new and not self._sending, within_s
            )

    def flush(self, within_s: float) -> bool:
        """Wait until no report is left; return True if that came about in time."""
        with self._state.changed:
            return self._state.changed.wait_for(lambda: not self._left(), within_s)

    def _left(self) -> bool:
        return bool(self._new or self._sending or self._again or self._repeating)

    def _start(self) -> None:
        if not self._started:
            self._started = True
            for part in (self._run_new, self._run_again):
                threading.Thread(target=part, name="catmq-failures", daemon=True).start()

    def _run_new(self) -> None:
        state = self._state
        while state.wait(IDLE_S, lambda: bool(self._new)):
            with state.changed:
                batch = [
                    self._new.popleft() for _ in range(min(len(self._new), MOST_MESSAGES))
                ]
                self._sending = len(batch)
            self._send_safely(batch)
            with state.changed:
                self._sending = 0
                state.changed.notify_all()

    def _run_again(self) -> None:
        state = self._state
        while self._await_due():
            now = time.monotonic()
            with state.changed:
                due = [one for one in self._again if one.not_before <= now]
                batch = due[:MOST_MESSAGES]
                self._again = [one for one in self._again if one.not_before > now] + due[
                    MOST_MESSAGES:
                ]
                self._repeating = len(batch)
            self._send_safely(batch)
            with state.changed:
                self._repeating = 0
                state.changed.notify_all()

    def _await_due(self) -> bool:
        """Wait until a report is due, or one came that is due sooner; return True if the
        consumer goes on.
        """
        due_at = self._due_at()
        rest_s = min(IDLE_S, due_at - time.monotonic())
        return self._state.wait(rest_s, lambda: self._due_at() < due_at)

    def _due_at(self) -> float:
        with self._state.changed:
            return min((one.not_before for one in self._again), default=math.inf)

    def _send_safely(self, batch: list[Report]) -> None:
        try:
            self._send(batch)
        except Exception:
            log.exception("internal error while reporting failures; continuing")
            with self._state.changed:
                self._repeat(batch)

    def _send(self, batch: list[Report]) -> None:
        state = self._state
        with state.changed:
            consumer_id = state.consumer_id
            batch = [report for report in batch if not self._is_void(report)]
        if not batch or consumer_id is None:
            return
        try:
            body = {"messages": [report.view() for report in batch]}
            answer = self._post("consumers", consumer_id, "failures", body=body)
        except CatmqError as error:
            self._after_error(error, consumer_id, batch)
            return
        with state.changed:
            state.hear(answer.get("generation", 0))
            self._take_over(answer, batch)

    def _is_void(self, report: Report) -> bool:
        """Return True if the queue went to another member: the message is repeated there."""
        if report.owned.lost:
            report.owned.reporting.discard(report.offset)
        return report.owned.lost

    def _after_error(
        self, error: CatmqError, consumer_id: str, batch: list[Report]
    ) -> None:
        if self._handle_error(error, consumer_id):
            return
        state = self._state
        with state.changed:
            if error.code == "no_failure_topic":
                batch = self._go_back(batch)
            if error.retriable or error.outcome_unknown:
                log.warning(
                    "%d failed messages could not be reported, will retry: %s",
                    len(batch),
                    error,
                )
                self._repeat(batch, least_s=(error.retry_after_ms or 0) / 1000)
                return
            for report in batch:
                failure = HandlerFailed(
                    f"{report}: the message failed ({report.error}) and cannot be stored "
                    "for a retry,"
                    f" its queue stands still: {error}"
                )
                failure.__cause__ = error
                log.error("%s", failure)
                state.halt(report.owned, failure)

    def _go_back(self, batch: list[Report]) -> list[Report]:
        """Move queues back to failed messages where nothing can be stored for a retry: from
        then on run() tries those in place, and whoever polls gets them once more. Return
        the reports that this does not settle."""
        in_place = self._state.in_place
        going = [
            one
            for one in batch
            if self._state.in_run or one.owned.subscription not in in_place
        ]
        in_place |= {report.owned.subscription for report in going}
        for owned in {report.owned for report in going}:
            what = "%s: there is no retry topic: failed messages are retried in place"
            log.warning(what, owned.subscription)
            self._state.seek(owned, owned.committable())
        self._state.on_gain()
        return [report for report in batch if report.version == report.owned.version]

    def _repeat(self, batch: list[Report], *, least_s: float = 0.0) -> None:
        """Put reports off: longer with each try, and each for a while of its own."""
        options = self._options
        base_s, max_s = (
            options.retry_backoff_ms / 1000,
            min(PAUSE_S, options.retry_backoff_max_ms / 1000),
        )
        for report in batch:
            pause_s = delay_s(report.tries, base_s=base_s, max_s=max_s)
            report.tries += 1
            report.not_before = time.monotonic() + max(least_s, pause_s)
        self._again += batch
        self._state.changed.notify_all()

    def _take_over(self, answer: dict[str, Any], batch: list[Report]) -> None:
        """Each message's fate; one that is not told is asked about again, which is
        harmless.
        """
        stored = {
            (one["queue"], one["offset"]): one
            for one in [*answer["retried"], *answer["dead"]]
        }
        dead = {(one["queue"], one["offset"]) for one in answer["dead"]}
        refused = {(one["queue"], one["offset"]): one["state"] for one in answer["refused"]}
        for report in batch:
            place = report.owned.queue, report.offset
            if place in stored:
                level = logging.ERROR if place in dead else logging.INFO
                what = "is a dead letter" if place in dead else "will be retried"
                attempt = stored[place]["attempt"]
                log.log(
                    level, "%s %s after failure %s: %s", report, what, attempt, report.error
                )
                self._done(report)
            elif refused.get(place) == "fenced":
                log.warning("%s: fenced, its new owner retries it", report)
                self._state.lose(report.owned)
                self._state.want_heartbeat()
                report.owned.reporting.discard(report.offset)
            elif refused.get(place) == "missing":
                log.error("%s failed and is no longer stored: %s", report, report.error)
                self._done(report)
            else:
                log.warning("%s: its failure cannot be stored now; will retry", report)
                self._repeat([report])

    def _done(self, report: Report) -> None:
        owned = report.owned
        owned.reported(report.offset, report.version)
        self._state.changed.notify_all()
