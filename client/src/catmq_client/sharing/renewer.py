"""Report the results of messages of leased runs, and renew the leases of the runs that are
held.
"""

from __future__ import annotations

import logging

from catmq_client.errors import CatmqError
from catmq_client.http.backoff import Backoff
from catmq_client.http.failure_log import FailureLog
from catmq_client.http.transport import Transport
from catmq_client.reading.clocks import lease_clock
from catmq_client.reading.component import Component, ErrorHandler
from catmq_client.sharing.leases import LeaseBook

log: logging.Logger = logging.getLogger("catmq.consumer")

# Limits of a request and of the pause after a failed request. They are short, because
# leases end meanwhile.
MIN_TIMEOUT_S = 1.0
MAX_PAUSE_MS = 2_000


class Renewer(Component):
    """Reports and renews for a consumer; `run` is the body of its thread."""

    def __init__(
        self, *, transport: Transport, book: LeaseBook, handle_error: ErrorHandler
    ) -> None:
        super().__init__(transport=transport, state=book, handle_error=handle_error)
        self._book = book
        options = book.share_options
        max_ms = min(MAX_PAUSE_MS, options.retry_backoff_max_ms)
        self._backoff = Backoff(base_ms=options.retry_backoff_ms, max_ms=max_ms)
        self._failures = FailureLog(log, "reporting to the broker, which is repeated,")

    def run(self) -> None:
        book = self._book
        while not book.closed and book.fatal is None:
            try:
                self._send_due_reports()
            except Exception:
                log.exception("internal error while renewing leases; continuing")
                book.wait(self._backoff.next_s())

    def flush(self, within_s: float) -> bool:
        """Report everything now. Return False if brokers do not know all of it in time."""
        book = self._book
        with book.changed:
            book.flushing = True
            book.changed.reports.notify_all()
            book.changed.wait_for(
                lambda: book.all_reported() or book.fatal is not None, within_s
            )
            book.flushing = False
            return book.all_reported()

    def _send_due_reports(self) -> None:
        """Send the reports that are due, or wait until there are any."""
        book = self._book
        with book.changed:
            consumer_id = book.consumer_id
            reports = [] if consumer_id is None else book.due_reports()
            if consumer_id is None or not reports:
                book.changed.reports.wait(1.0 if consumer_id is None else book.due_in_s())
                return
        # Taken before the request is sent: a lease must not seem longer than the broker's.
        sent_at = lease_clock()
        timeout_s = min(
            self._options.request_timeout_ms / 1000, max(MIN_TIMEOUT_S, book.lease_s / 3)
        )
        body = {"done": [report.view() for report in reports]}
        try:
            path = "consumers", consumer_id, "share", "done"
            answer = self._post(*path, body=body, timeout_s=timeout_s)
        except CatmqError as error:
            with book.changed:
                book.mark_unsent(reports)
            if not self._handle_error(error, consumer_id):
                self._failures.failed(error)
                book.wait(self._backoff.next_s(error))
            return
        self._backoff.reset()
        self._failures.ended()
        with book.changed:
            book.note_generation(answer.get("generation", 0))
            book.apply_answers(reports, answer["done"], sent_at=sent_at)
