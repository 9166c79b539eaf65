"""Pull leased runs ahead of the application, while few messages wait for it.

Brokers divide the messages fairly between members, so a pull asks for no more than the
application will begin with soon. A pull whose answer was lost may have leased runs. The
next pull then names the runs that are held, and gets the others again.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from catmq_client.errors import CatmqError, Conflict, ConnectFailed, NotFound
from catmq_client.http.backoff import Backoff
from catmq_client.http.transport import Transport
from catmq_client.message import Message, Source, parse_messages
from catmq_client.reading.clocks import lease_clock
from catmq_client.reading.component import ErrorHandler, LongPoll
from catmq_client.sharing.leases import LeaseBook
from catmq_client.sharing.runs import RunReport

log: logging.Logger = logging.getLogger("catmq.consumer")

# How long the thread sleeps while the application has enough. More room wakes it.
IDLE_S = 1.0
# Error codes of requests that were certainly not executed.
NOT_EXECUTED_CODES = ("busy", "draining", "rate_limited")
# Longest pause after pulls that brought nothing and did not wait, ms.
MAX_PAUSE_MS = 2_000
RETURN_TIMEOUT_S = 3.0
NO_SOURCE = Source("", 0, 0)


@dataclass(frozen=True, slots=True)
class Plan:
    """The next pull: its body, and the reports that it carries."""

    consumer_id: str
    reports: list[RunReport]
    wait_ms: int
    body: dict[str, Any]
    # The term of the lease book when the pull was sent.
    term: int


class Puller(LongPoll):
    """Pulls for a consumer; `run` is the body of its thread."""

    def __init__(
        self,
        *,
        transport: Transport,
        book: LeaseBook,
        handle_error: ErrorHandler,
        topics: list[str],
    ) -> None:
        super().__init__(transport=transport, state=book, handle_error=handle_error)
        self._book = book
        self._topics = topics
        self._pull_numbers = itertools.count(1)
        # The answer to a pull was lost or dropped, so runs may be leased that are unknown
        # here.
        self._must_recover = False
        self._empty_backoff = Backoff(max_ms=MAX_PAUSE_MS)
        # The queues that cannot be read now, with their states.
        self._unreadable_queues: dict[int, str] = {}

    def interrupt(self) -> None:
        with self._book.changed:
            # The answer of the interrupted pull is dropped, and with it the runs that it
            # leases.
            self._must_recover = self._must_recover or self._in_pull
            super().interrupt()

    def _pull_once(self, ticket: int, backoff: Backoff) -> None:
        book = self._book
        with book.changed:
            plan = self._plan()
            if plan is None:
                book.changed.room.wait(IDLE_S)
                return
            self._in_pull = True
            book.pulls += 1
        sent_at = lease_clock()
        try:
            timeout_s = (plan.wait_ms + self._options.request_timeout_ms) / 1000
            path = "consumers", plan.consumer_id, "share"
            answer = self._post(*path, body=plan.body, timeout_s=timeout_s)
        except CatmqError as error:
            self._after_error(error, plan, ticket=ticket, backoff=backoff)
            return
        finally:
            with book.changed:
                book.pulls -= 1
        backoff.reset()
        self._take_over(plan, answer, ticket=ticket, sent_at=sent_at)

    def _plan(self) -> Plan | None:
        """Return the next pull, or None if there is nothing to pull or no room."""
        book, options = self._book, self._book.share_options
        consumer_id, room = book.consumer_id, book.room()
        if (
            consumer_id is None
            or not room
            or not book.may_pull()
            or book.is_stalled(time.monotonic())
        ):
            return None
        # A pull with reports does not wait: commit() and close() wait for the answer.
        reports = book.finished_run_reports()
        wait_ms = 0 if reports else self._wait_ms()
        body: dict[str, Any] = {
            "max_messages": room,
            "max_bytes": options.fetch_max_bytes,
            "wait_ms": wait_ms,
            "count_begun": True,
        }
        if self._topics:
            interval = options.reverse_topics_every
            is_reversed = interval is not None and next(self._pull_numbers) % interval == 0
            body["topics"] = self._topics[::-1] if is_reversed else self._topics
        if reports:
            body["done"] = [report.view() for report in reports]
        if self._must_recover:
            held_runs = [
                {"queue": queue, "first": first, "grant": grant}
                for queue, first, grant in book.runs
            ]
            body |= {"recover": True, "holding": held_runs}
        return Plan(consumer_id, reports, wait_ms, body, book.term)

    def _wait_ms(self) -> int:
        """Return how long the pull waits at the broker.

        While runs are held, that is a third of a lease. An application that stalls gives
        back its waiting messages, but only while no pull is under way.
        """
        max_ms = self._book.limits.fetch_max_wait_ms
        return (
            min(max_ms, round(self._book.lease_s * 1000 / 3)) if self._book.runs else max_ms
        )

    def _take_over(
        self, plan: Plan, answer: dict[str, Any], *, ticket: int, sent_at: float
    ) -> None:
        """Apply the answer: the results of reports, and the leased runs."""
        book = self._book
        runs, waited_s = answer["runs"], lease_clock() - sent_at
        with book.changed:
            book.note_generation(answer["generation"])
            book.apply_answers(plan.reports, answer["done"], sent_at=sent_at)
            if ticket != self._ticket:
                # Another pull may have leased and finished the same runs since, so these
                # are dropped, and recovered if they are still leased.
                self._must_recover = self._must_recover or bool(runs)
                return
            self._in_pull = False
            self._must_recover = self._must_recover and "recover" not in plan.body
            closing = book.closing or book.closed
            # The runs of an ended membership may be leased to others by now, so they must
            # be renewed before they begin.
            leased_at = sent_at if plan.term == book.term else -math.inf
            has_new_messages = not closing and book.take_over(runs, sent_at=leased_at)
            self._log_unreadable_queues(answer.get("queues", ()))
            if has_new_messages or plan.reports or waited_s * 2000 > plan.wait_ms:
                self._empty_backoff.reset()
                pause_s = 0.0
            else:
                pause_s = self._empty_backoff.next_s()
            pause_s = max(pause_s, answer.get("retry_after_ms", 0) / 1000)
        if closing:
            self._return_runs(plan.consumer_id, runs)
        elif pause_s:
            wake_count = self._wake_count
            book.wait(pause_s, lambda: book.stopping or self._wake_count != wake_count)

    def _after_error(
        self, error: CatmqError, plan: Plan, *, ticket: int, backoff: Backoff
    ) -> None:
        """Handle the error of a pull."""
        book = self._book
        with book.changed:
            book.mark_unsent(plan.reports)
            if (
                not isinstance(error, ConnectFailed)
                and error.code not in NOT_EXECUTED_CODES
            ):
                self._must_recover = True
        if isinstance(error, NotFound | Conflict) and error.code != "consumer_not_found":
            # The group or a topic does not exist, or the group is no share group: no repeat
            # can help.
            book.fail_with(error)
        else:
            self._after_failure(error, plan.consumer_id, ticket=ticket, backoff=backoff)

    def _log_unreadable_queues(self, queues: Iterable[Mapping[str, Any]]) -> None:
        """Log each change of the queues that cannot be read."""
        unreadable_queues = {entry["queue"]: entry["state"] for entry in queues}
        for queue, state in unreadable_queues.items():
            if self._unreadable_queues.get(queue) != state:
                level = logging.INFO if state == "stopped" else logging.WARNING
                log.log(level, "queue %d cannot be read now: %s", queue, state)
        for queue in self._unreadable_queues.keys() - unreadable_queues.keys():
            log.info("queue %d can be read again", queue)
        self._unreadable_queues = unreadable_queues

    def _return_runs(self, consumer_id: str, runs: list[dict[str, Any]]) -> None:
        """Give back runs that came after the consumer was closed."""
        done = [
            {name: run[name] for name in ("queue", "first", "grant")}
            | {
                "unseen": [
                    message.offset for message in parse_messages(run, NO_SOURCE, Message)
                ]
            }
            | ({"delivery": run["deliveries"]} if run.get("uncounted") else {})
            for run in runs
        ]
        try:
            if done:
                path = "consumers", consumer_id, "share", "done"
                self._post(*path, body={"done": done}, timeout_s=RETURN_TIMEOUT_S)
        except CatmqError as error:
            log.info(
                "messages that came after the end are delivered when their lease ends: %s",
                error,
            )
