"""Report failed messages, so that the broker stores each of them for a later retry.

A handler does not wait for its report. The report is queued and sent together with others.
The message stays unfinished until the broker has answered, so no commit passes it. Reports
that a node cannot store now are repeated in a thread of their own, so that those of other
queues do not wait. If a queue moves to another member, its reports are dropped: that member
gets the messages again.
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
from catmq_client.reading.component import Component, ErrorHandler
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.state import GroupState

log: logging.Logger = logging.getLogger("catmq.consumer")

# Limits of brokers: messages of a request, and characters of an error text.
MAX_MESSAGES = 1_000
MAX_ERROR_CHARS = 2_000
# Longest pause before a report is repeated, and longest sleep without work.
MAX_PAUSE_S = 5.0
IDLE_S = 60.0


@dataclass(eq=False, slots=True)
class Report:
    """A failed message.

    A repeat of the report has the same content, so the broker can recognize it if the first
    answer was lost.
    """

    owned: OwnedQueue
    offset: int
    version: int
    error: str
    # Overrides the subscription's settings of the next retry; see Reporter.add.
    disposition: dict[str, Any]
    first_failed_at_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    tries: int = 0
    not_before: float = 0.0

    def __str__(self) -> str:
        return f"{self.owned} offset {self.offset}"

    def view(self) -> dict[str, Any]:
        return {
            "queue": self.owned.queue,
            "offset": self.offset,
            **self.owned.fencing_fields(),
            "error": self.error,
            "first_failed_at_ms": self.first_failed_at_ms,
            **self.disposition,
        }


class Reporter(Component):
    """Reports the failed messages of a consumer.

    Its two threads start with the first failure.
    """

    def __init__(
        self, *, transport: Transport, state: GroupState, handle_error: ErrorHandler
    ) -> None:
        super().__init__(transport=transport, state=state, handle_error=handle_error)
        self._started = False
        self._new: deque[Report] = deque()
        self._repeats: list[Report] = []
        # Number of reports that are being sent for the first time, and again.
        self._send_count = 0
        self._repeat_count = 0

    def add(
        self, owned: OwnedQueue, message: Message, error: object, **disposition: Any
    ) -> None:
        """Queue a report. The message is finished when the report is answered.

        `disposition`: last=True if the retries in place are used up. In a share group,
        final=True makes the message a dead letter, and delay_ms is the pause before the
        next delivery.
        """
        text = (
            f"{type(error).__name__}: {error}"
            if isinstance(error, BaseException)
            else str(error or "")
        )
        # A lone surrogate cannot be encoded as UTF-8: the request would fail forever.
        text = text.encode(errors="replace").decode()
        with self._state.changed:
            if message.failed:
                return
            message.failed = True
            # The offset stays unfinished until mark_failure_stored(), even if the handler
            # returns.
            owned.mark_failed(message.offset)
            disposition = {
                name: value
                for name, value in disposition.items()
                if value is not None and value is not False
            }
            self._new.append(
                Report(
                    owned,
                    message.offset,
                    owned.version,
                    text[:MAX_ERROR_CHARS],
                    disposition,
                )
            )
            if not self._started:
                self._started = True
                for thread_body in (self._run_new, self._run_repeats):
                    threading.Thread(
                        target=thread_body, name="catmq-failures", daemon=True
                    ).start()
            self._state.changed.notify_all()

    def await_first_attempts(self, within_s: float) -> bool:
        """Wait until every report was sent once.

        Return False if that takes longer than `within_s`.
        """
        with self._state.changed:
            return self._state.changed.wait_for(
                lambda: not self._new and not self._send_count, within_s
            )

    def flush(self, within_s: float) -> bool:
        """Wait until no report is left. Return False if that takes longer than `within_s`."""
        with self._state.changed:
            return self._state.changed.wait_for(
                lambda: (
                    not self._new
                    and not self._send_count
                    and not self._repeats
                    and not self._repeat_count
                ),
                within_s,
            )

    def _run_new(self) -> None:
        """Send new reports until the consumer is closed. Body of the first thread."""
        state = self._state
        while state.wait(IDLE_S, lambda: bool(self._new)):
            with state.changed:
                batch = [
                    self._new.popleft() for _ in range(min(len(self._new), MAX_MESSAGES))
                ]
                self._send_count = len(batch)
            self._send_or_repeat(batch)
            with state.changed:
                self._send_count = 0
                state.changed.notify_all()

    def _run_repeats(self) -> None:
        """Repeat reports that failed until the consumer is closed.

        Body of the second thread.
        """
        state = self._state
        while self._wait_until_due():
            now = time.monotonic()
            with state.changed:
                due_reports = [
                    report for report in self._repeats if report.not_before <= now
                ]
                batch = due_reports[:MAX_MESSAGES]
                self._repeats = [
                    report for report in self._repeats if report.not_before > now
                ] + due_reports[MAX_MESSAGES:]
                self._repeat_count = len(batch)
            self._send_or_repeat(batch)
            with state.changed:
                self._repeat_count = 0
                state.changed.notify_all()

    def _wait_until_due(self) -> bool:
        """Wait until a report is due, or until a new report is due earlier.

        Return False if the consumer is closed.
        """
        due_at = self._next_due_at()
        return self._state.wait(
            min(IDLE_S, due_at - time.monotonic()), lambda: self._next_due_at() < due_at
        )

    def _next_due_at(self) -> float:
        with self._state.changed:
            return min((report.not_before for report in self._repeats), default=math.inf)

    def _send_or_repeat(self, batch: list[Report]) -> None:
        state = self._state
        try:
            with state.changed:
                consumer_id = state.consumer_id
                # The next owner of a lost queue gets its messages again.
                for report in batch:
                    if report.owned.lost:
                        report.owned.unstored_failures.discard(report.offset)
                open_reports = [report for report in batch if not report.owned.lost]
            if not open_reports or consumer_id is None:
                return
            try:
                body = {"messages": [report.view() for report in open_reports]}
                answer = self._post("consumers", consumer_id, "failures", body=body)
            except CatmqError as error:
                self._after_error(error, consumer_id, open_reports)
                return
            with state.changed:
                state.note_generation(answer.get("generation", 0))
                self._apply_answer(answer, open_reports)
        except Exception:
            # An internal error must not end the thread.
            log.exception("internal error while reporting failures; continuing")
            with state.changed:
                self._schedule_repeats(batch)

    def _after_error(
        self, error: CatmqError, consumer_id: str, batch: list[Report]
    ) -> None:
        """Repeat the reports of a failed request, or halt their queues if no repeat can
        help.
        """
        if self._handle_error(error, consumer_id):
            return
        state = self._state
        with state.changed:
            if error.code == "no_failure_topic":
                batch = self._rewind_queues(batch)
            if error.retriable or error.outcome_unknown:
                log.warning(
                    "%d failed messages could not be reported, will retry: %s",
                    len(batch),
                    error,
                )
                self._schedule_repeats(batch, min_s=(error.retry_after_ms or 0) / 1000)
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

    def _rewind_queues(self, batch: list[Report]) -> list[Report]:
        """Rewind queues to failed messages that cannot be stored, because there is no retry
        topic.

        From then on run() retries messages of these topics in place. After poll() the
        application gets the failed messages once more, and if they fail again the queue
        halts. Return the reports that are not settled by this.
        """
        no_retry_topics = self._state.no_retry_topics
        rewound_reports = [
            report
            for report in batch
            if self._state.has_worker_threads
            or report.owned.subscription not in no_retry_topics
        ]
        no_retry_topics |= {report.owned.subscription for report in rewound_reports}
        for owned in {report.owned for report in rewound_reports}:
            log.warning(
                "%s: there is no retry topic: failed messages are retried in place",
                owned.subscription,
            )
            self._state.redeliver_failed(owned)
        self._state.on_readable()
        return [report for report in batch if report.version == report.owned.version]

    def _schedule_repeats(self, batch: list[Report], *, min_s: float = 0.0) -> None:
        """Put reports off. The pause of each grows with its tries, and has its own jitter."""
        options = self._options
        base_s = options.retry_backoff_ms / 1000
        max_s = min(MAX_PAUSE_S, options.retry_backoff_max_ms / 1000)
        for report in batch:
            pause_s = delay_s(report.tries, base_s=base_s, max_s=max_s)
            report.tries += 1
            report.not_before = time.monotonic() + max(min_s, pause_s)
        self._repeats += batch
        self._state.changed.notify_all()

    def _apply_answer(self, answer: dict[str, Any], batch: list[Report]) -> None:
        """Apply the outcome of each report.

        A report without an outcome is repeated, which is harmless.
        """
        stored = {
            (entry["queue"], entry["offset"]): entry
            for entry in [*answer["retried"], *answer["dead"]]
        }
        dead = {(entry["queue"], entry["offset"]) for entry in answer["dead"]}
        refused = {
            (entry["queue"], entry["offset"]): entry["state"] for entry in answer["refused"]
        }
        for report in batch:
            key = report.owned.queue, report.offset
            if key in stored:
                level = logging.ERROR if key in dead else logging.INFO
                outcome = "is a dead letter" if key in dead else "will be retried"
                log.log(
                    level,
                    "%s %s after failure %s: %s",
                    report,
                    outcome,
                    stored[key]["attempt"],
                    report.error,
                )
                self._finish(report)
            elif refused.get(key) == "fenced":
                log.warning("%s: fenced, its new owner retries it", report)
                # The next owner gets the message again, because no commit has passed it.
                self._state.lose(report.owned)
                self._state.want_heartbeat()
                report.owned.unstored_failures.discard(report.offset)
            elif refused.get(key) == "missing":
                log.error("%s failed and is no longer stored: %s", report, report.error)
                self._finish(report)
            else:
                log.warning("%s: its failure cannot be stored now; will retry", report)
                self._schedule_repeats([report])

    def _finish(self, report: Report) -> None:
        report.owned.mark_failure_stored(report.offset, report.version)
        self._state.changed.notify_all()
