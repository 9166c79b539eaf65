"""Brings runs: pulls ahead, while few messages wait for the application.

The server cuts runs fairly between members, so a pull asks for no more than the application
will soon take. A pull whose answer was lost may have leased a run: the next one names what
is held, and gets the rest.
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
from catmq_client.reading.part import ErrorHandler, LongPoll
from catmq_client.sharing.leases import LeaseBook
from catmq_client.sharing.runs import RunReport

log = logging.getLogger("catmq.consumer")

# How long the thread sleeps while the application has enough; more room wakes it.
IDLE_S = 1.0
# What is refused with these codes was certainly not begun.
NOTHING_DONE = ("busy", "draining", "rate_limited")
# Longest pause after pulls that brought nothing and did not wait, ms.
MOST_PAUSE_MS = 2_000
FREE_WITHIN_S = 3.0
NOBODY = Source("", 0, 0)


@dataclass(frozen=True, slots=True)
class Plan:
    consumer_id: str
    reports: list[RunReport]
    wait_ms: int
    body: dict[str, Any]
    # That of the lease book when the pull was sent.
    term: int


class Puller(LongPoll):
    """Pulls for one consumer."""

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
        self._plans = itertools.count(1)
        # The answer to a pull was lost, or thrown away.
        self._recovers = False
        self._empty = Backoff(max_ms=MOST_PAUSE_MS)
        # The queues that cannot be read now, and why.
        self._shut: dict[int, str] = {}

    def interrupt(self) -> None:
        with self._book.changed:
            self._recovers = self._recovers or self._in_pull
            super().interrupt()

    def _step(self, ticket: int, backoff: Backoff) -> None:
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
            self._failed(error, plan, ticket=ticket, backoff=backoff)
            return
        finally:
            with book.changed:
                book.pulls -= 1
        backoff.reset()
        self._take_over(plan, answer, ticket=ticket, sent_at=sent_at)

    def _plan(self) -> Plan | None:
        """Return the next pull; None when there is nothing to do or no room."""
        book, options = self._book, self._book.share_options
        consumer_id, room = book.consumer_id, book.room()
        if (
            consumer_id is None
            or not room
            or not book.may_pull()
            or book.stands_still(time.monotonic())
        ):
            return None
        # News are answered at once: commit() and close() wait for that.
        reports = book.over()
        wait_ms = 0 if reports else self._wait_ms()
        body: dict[str, Any] = {
            "max_messages": room,
            "max_bytes": options.fetch_max_bytes,
            "wait_ms": wait_ms,
            "count_begun": True,
        }
        if self._topics:
            every = options.reverse_topics_every
            is_reversed = every is not None and next(self._plans) % every == 0
            body["topics"] = self._topics[::-1] if is_reversed else self._topics
        if reports:
            body["done"] = [report.view() for report in reports]
        if self._recovers:
            held = [
                {"queue": q, "first": first, "grant": grant}
                for q, first, grant in book.runs
            ]
            body |= {"recover": True, "holding": held}
        return Plan(consumer_id, reports, wait_ms, body, book.term)

    def _wait_ms(self) -> int:
        """Return how long to wait at the broker: while messages are held, not for a lease,
        because an application that stands still gives back what waits once no pull is under
        way."""
        most_ms = self._book.limits.fetch_max_wait_ms
        return (
            min(most_ms, round(self._book.lease_s * 1000 / 3))
            if self._book.runs
            else most_ms
        )

    def _take_over(
        self, plan: Plan, answer: dict[str, Any], *, ticket: int, sent_at: float
    ) -> None:
        book = self._book
        runs, waited_s = answer["runs"], lease_clock() - sent_at
        with book.changed:
            book.hear(answer["generation"])
            book.answered(plan.reports, answer["done"], sent_at=sent_at)
            if ticket != self._ticket:
                # Another pull may have brought and finished the same since.
                self._recovers = self._recovers or bool(runs)
                return
            self._in_pull = False
            self._recovers = self._recovers and "recover" not in plan.body
            parting = book.parting or book.closed
            # What an ended membership leased may be leased to others by now: it is to be
            # renewed
            # first.
            leased_at = sent_at if plan.term == book.term else -math.inf
            brought = not parting and book.take_over(runs, sent_at=leased_at)
            self._tell_shut(answer.get("queues", ()))
            if brought or plan.reports or waited_s * 2000 > plan.wait_ms:
                self._empty.reset()
                pause_s = 0.0
            else:
                pause_s = self._empty.next_s()
            pause_s = max(pause_s, answer.get("retry_after_ms", 0) / 1000)
        if parting:
            self._return_runs(plan.consumer_id, runs)
        elif pause_s:
            pokes = self._pokes
            book.wait(pause_s, lambda: book.stopping or self._pokes != pokes)

    def _failed(
        self, error: CatmqError, plan: Plan, *, ticket: int, backoff: Backoff
    ) -> None:
        book = self._book
        with book.changed:
            book.unsent(plan.reports)
            if not isinstance(error, ConnectFailed) and error.code not in NOTHING_DONE:
                self._recovers = True
        if isinstance(error, NotFound | Conflict) and error.code != "consumer_not_found":
            book.fail_with(error)
        else:
            self._after_failure(error, plan.consumer_id, ticket=ticket, backoff=backoff)

    def _tell_shut(self, queues: Iterable[Mapping[str, Any]]) -> None:
        """Say once why nothing comes from a queue."""
        shut = {item["queue"]: item["state"] for item in queues}
        for queue, state in shut.items():
            if self._shut.get(queue) != state:
                level = logging.INFO if state == "stopped" else logging.WARNING
                log.log(level, "queue %d cannot be read now: %s", queue, state)
        for queue in self._shut.keys() - shut.keys():
            log.info("queue %d can be read again", queue)
        self._shut = shut

    def _return_runs(self, consumer_id: str, runs: list[dict[str, Any]]) -> None:
        """Give back what came after the end."""
        done = [
            {name: run[name] for name in ("queue", "first", "grant")}
            | {
                "unseen": [
                    message.offset for message in parse_messages(run, NOBODY, Message)
                ]
            }
            | ({"delivery": run["deliveries"]} if run.get("uncounted") else {})
            for run in runs
        ]
        try:
            if done:
                path = "consumers", consumer_id, "share", "done"
                self._post(*path, body={"done": done}, timeout_s=FREE_WITHIN_S)
        except CatmqError as error:
            log.info(
                "messages that came after the end are delivered when their lease ends: %s",
                error,
            )
