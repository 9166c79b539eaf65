"""Tells brokers what became of messages of leased runs, and renews the leases of those that
are held.
"""

from __future__ import annotations

import logging

from catmq_client.errors import CatmqError
from catmq_client.http.backoff import Backoff
from catmq_client.http.failure_log import FailureLog
from catmq_client.http.transport import Transport
from catmq_client.reading.clocks import lease_clock
from catmq_client.reading.part import ErrorHandler, Part
from catmq_client.sharing.leases import LeaseBook
from catmq_client.sharing.runs import RunReport

log = logging.getLogger("catmq.consumer")

# Limits of the pause after a failed request: leases must not run out over it.
LEAST_TIMEOUT_S = 1.0
MOST_PAUSE_MS = 2_000


class Renewer(Part):
    """Reports for one consumer; `run` is its thread."""

    def __init__(
        self, *, transport: Transport, book: LeaseBook, handle_error: ErrorHandler
    ) -> None:
        super().__init__(transport=transport, state=book, handle_error=handle_error)
        self._book = book
        options = book.share_options
        most_ms = min(MOST_PAUSE_MS, options.retry_backoff_max_ms)
        self._backoff = Backoff(base_ms=options.retry_backoff_ms, max_ms=most_ms)
        self._failures = FailureLog(log, "reporting to the broker, which is repeated,")

    def run(self) -> None:
        book = self._book
        while not book.closed and book.fatal is None:
            try:
                self._step()
            except Exception:
                log.exception("internal error while renewing leases; continuing")
                book.wait(self._backoff.next_s())

    def flush(self, within_s: float) -> bool:
        """Report everything now; return True if brokers know all of it in time."""
        book = self._book
        with book.changed:
            book.hurried = True
            book.changed.reports.notify_all()
            book.changed.wait_for(
                lambda: book.is_settled() or book.fatal is not None, within_s
            )
            book.hurried = False
            return book.is_settled()

    def _step(self) -> None:
        book = self._book
        with book.changed:
            consumer_id = book.consumer_id
            reports = [] if consumer_id is None else book.due()
            if consumer_id is None or not reports:
                book.changed.reports.wait(1.0 if consumer_id is None else book.due_in_s())
                return
        self._send(consumer_id, reports)

    def _send(self, consumer_id: str, reports: list[RunReport]) -> None:
        book = self._book
        sent_at = lease_clock()
        timeout_s = min(
            self._options.request_timeout_ms / 1000, max(LEAST_TIMEOUT_S, book.lease_s / 3)
        )
        body = {"done": [report.view() for report in reports]}
        try:
            answer = self._post(
                "consumers", consumer_id, "share", "done", body=body, timeout_s=timeout_s
            )
        except CatmqError as error:
            with book.changed:
                book.unsent(reports)
            if not self._handle_error(error, consumer_id):
                self._failures.failed(error)
                book.wait(self._backoff.next_s(error))
            return
        self._backoff.reset()
        self._failures.ended()
        with book.changed:
            book.hear(answer.get("generation", 0))
            book.answered(reports, answer["done"], sent_at=sent_at)
