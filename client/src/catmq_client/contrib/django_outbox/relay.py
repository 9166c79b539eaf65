"""The relay: sends messages from the outbox to the brokers, each stored once, each key in
order.

One pass first repeats the batches with an unknown outcome, unchanged. Then waiting rows
become batches, at most one per queue, and are sent. A queue with an open batch gets no further
batch until that batch is settled, so no message overtakes an earlier message of its key.

`after_failure` decides the next step after a failed try, without a limit on the number of
tries:

* A batch that may be stored is repeated unchanged until its outcome is known.
* A batch that a queue certainly did not store waits again, and is routed by the new layout.
* If messages are refused, the other messages of their batch wait again.
* An unknown API key ends the relay: that is no fault of the messages.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from catmq_client.contrib.django_outbox.claims import (
    ClaimedBatch,
    Claims,
    Destination,
    WaitingRow,
)
from catmq_client.errors import (
    CatmqError,
    InvalidRequest,
    NotFound,
    OptionError,
    Unauthenticated,
)
from catmq_client.http.backoff import Backoff
from catmq_client.http.transport import Transport
from catmq_client.sending.receipts import Outcome
from catmq_client.sending.routing import Kind, Layouts, Routes
from catmq_client.sending.send_request import (
    NODE_AWAY,
    QUEUE_CLOSED,
    NextStep,
    after_failure,
    errors_by_index,
    send,
)

log: logging.Logger = logging.getLogger("catmq.outbox")

BATCH_MESSAGES = 500
BATCH_BYTES = 1024 * 1024
LAYOUT_AGE_S = 60.0
IN_FLIGHT = 8  # batches, each for another queue
# Shares of the lease. A try begins at most START_WITHIN after the lease was renewed, and
# takes at most TIMEOUT. So it has ended before another relay may take over.
START_WITHIN, TIMEOUT = 0.3, 0.6


class NotTried(CatmqError, retriable=True):
    """A batch was left for the next pass."""


@dataclass(slots=True)
class PassResult:
    """Result of a pass.

    `sent` and `failed` count messages. `delayed_batches` are repeated unchanged after a
    pause; `ready_batches` the next pass can send again, split or re-route at once. `error`
    is the last failure.
    """

    sent: int = 0
    failed: int = 0
    delayed_batches: int = 0
    ready_batches: int = 0
    error: CatmqError | None = None

    @property
    def advanced(self) -> bool:
        """True if the next pass may find work at once."""
        return bool(self.sent or self.failed or self.ready_batches)


@dataclass(slots=True)
class _Pacing:
    """The pace of a destination or topic after recent failures: `not_before` is when it may
    be tried again, `max_messages` limits its next batch.
    """

    backoff: Backoff
    not_before: float = 0.0
    max_messages: int = BATCH_MESSAGES


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A send of a batch, with its results or its error."""

    claimed: ClaimedBatch
    ids: list[int]
    results: list[Outcome] = field(default_factory=list)
    error: CatmqError | None = None


def new_relay_name() -> str:
    return f"{socket.gethostname()[:60]}-{os.getpid()}-{secrets.token_hex(2)}"


class Relay:
    """Sends the outbox's messages while its `claims` hold the lease."""

    def __init__(
        self,
        transport: Transport,
        claims: Claims,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.claims = claims
        self._transport = transport
        self._clock = clock
        self._timeout_s = TIMEOUT * claims.lease_s
        self._layouts = Layouts(
            transport, max_age_s=LAYOUT_AGE_S, timeout_s=self._timeout_s
        )
        self._pacing: dict[Destination, _Pacing] = {}
        self._closed_topics: dict[str, _Pacing] = {}
        # The topics that this pass has looked up: their routes, or the look-up's error.
        self._looked_up: dict[str, Routes | CatmqError] = {}
        # Batches that this relay claimed and that are certainly not stored: none of their
        # tries had an unknown outcome.
        self._not_stored: set[UUID] = set()
        self._pass_began_at = 0.0

    def run_once(self) -> PassResult:
        """Run one pass. A repetition is always safe.

        Raises LeaseLost, Unauthenticated, DatabaseError.
        """
        result = PassResult()
        self._pass_began_at, self._looked_up = self._clock(), {}
        open_batches = self.claims.open_batches()
        # By topic, the slots that no further batch may contain now: their queue has an open
        # batch, or refused a batch a moment ago.
        busy: dict[str, set[int]] = {}
        for batch in open_batches:
            # Both the slots of the batch's keys and the slots that its queue has now: the
            # layout may have moved a slot since the batch was claimed.
            busy.setdefault(batch.destination.topic, set()).update(
                batch.slots | self._slots_of(batch.destination)
            )
        now = self._clock()
        for destination, pacing in self._pacing.items():
            if pacing.not_before > now:
                busy.setdefault(destination.topic, set()).update(
                    self._slots_of(destination)
                )
        waiting = self.claims.sendable_rows(
            busy=busy,
            # The queue of an open batch without a queue is unknown: its topic waits.
            closed={
                batch.destination.topic
                for batch in open_batches
                if batch.destination.queue is None
            }
            | self._unreachable_topics(),
        )
        batches = self._form_batches(
            waiting, {batch.destination for batch in open_batches}, result
        )
        if batches:
            self._not_stored |= self.claims.claim(batches)
            open_batches = self.claims.open_batches()
        sendable = [
            batch
            for batch in open_batches
            if self._pacing_of(batch.destination).not_before <= self._clock()
        ]
        result.delayed_batches += len(open_batches) - len(sendable)
        # Batches are sent in parallel. Only this thread uses the database.
        with ThreadPoolExecutor(
            max_workers=IN_FLIGHT, thread_name_prefix="catmq-outbox"
        ) as pool:
            # In groups, which bounds the memory: the bodies of IN_FLIGHT batches.
            for start in range(0, len(sendable), IN_FLIGHT):
                loaded = [
                    (batch, *self.claims.load_messages(batch))
                    for batch in sendable[start : start + IN_FLIGHT]
                ]
                for attempt in pool.map(lambda batch: self._attempt(*batch), loaded):
                    self._settle(attempt, result)
        return result

    def wait_s(self) -> float | None:
        """Return the seconds until a failed destination may be tried again; None if none has
        failed.
        """
        now = self._clock()
        delays = [
            pacing.not_before - now
            for pacing in (*self._pacing.values(), *self._closed_topics.values())
        ]
        return min((delay for delay in delays if delay > 0), default=None)

    def _pacing_of(self, destination: Destination) -> _Pacing:
        return self._pacing.setdefault(destination, _Pacing(Backoff()))

    def _unreachable_topics(self) -> set[str]:
        """Return the topics whose layout could not be fetched a moment ago."""
        return {
            topic
            for topic, pacing in self._closed_topics.items()
            if pacing.not_before > self._clock()
        }

    def _routes(self, topic: str) -> Routes | None:
        """Return the topic's routes; None if no broker returns them. Looked up once a pass."""
        if topic not in self._looked_up:
            try:
                routes = self._layouts.routes(topic, within_s=0.0)
            except CatmqError as error:
                self._looked_up[topic] = error
            else:
                if layout := self._layouts.refresh(topic, after_refusal=False):
                    routes.replace(layout)
                self._looked_up[topic] = routes
        looked_up = self._looked_up[topic]
        return looked_up if isinstance(looked_up, Routes) else None

    def _slots_of(self, destination: Destination) -> set[int]:
        routes = self._routes(destination.topic)
        slots = () if routes is None else routes.layout.slots
        return {slot for slot, queue in enumerate(slots) if queue == destination.queue}

    def _form_batches(
        self, waiting: Sequence[WaitingRow], busy: set[Destination], result: PassResult
    ) -> dict[Destination, list[int]]:
        """Return the ids of rows by destination, at most one request for each destination."""
        batches: dict[Destination, list[int]] = {}
        sizes: dict[Destination, int] = {}
        full = set(busy)
        for row in waiting:
            destination = self._route(row, full, result)
            if destination is None or destination in full:
                continue
            pacing, batch = self._pacing_of(destination), batches.get(destination, [])
            size = sizes.get(destination, 0) + row.size
            if (
                pacing.not_before > self._clock()
                or len(batch) >= pacing.max_messages
                or (batch and size > BATCH_BYTES)
            ):
                # A later, smaller row would fit, but it would overtake this row.
                full.add(destination)
                continue
            batches.setdefault(destination, batch).append(row.id)
            sizes[destination] = size
        return batches

    def _route(
        self, row: WaitingRow, full: set[Destination], result: PassResult
    ) -> Destination | None:
        """Return a row's destination; None while no broker returns its topic's layout."""
        if row.topic in self._unreachable_topics():
            return None
        routes = self._routes(row.topic)
        if routes is None:
            error = self._looked_up[row.topic]
            if isinstance(error, NotFound):
                # Sent all the same: the refusal then marks the rows as failed.
                return Destination(row.topic, None)
            if isinstance(error, Unauthenticated):
                raise error
            if isinstance(error, CatmqError):
                pacing = self._closed_topics.setdefault(row.topic, _Pacing(Backoff()))
                pacing.not_before = self._clock() + pacing.backoff.next_s(error)
                result.error = error
            return None
        self._closed_topics.pop(row.topic, None)
        destination = Destination(
            row.topic, routes.choose(key=row.key, queue=None, strict_queue=True).queue
        )
        if row.key is None and destination in full:
            # A message without a key may go to any queue.
            routes.next_queue(after=destination.queue)
            destination = Destination(
                row.topic, routes.choose(key=None, queue=None, strict_queue=True).queue
            )
        return destination

    def _attempt(
        self, claimed: ClaimedBatch, ids: list[int], messages: list[dict[str, Any]]
    ) -> _Attempt:
        try:
            if self._clock() - self._pass_began_at > START_WITHIN * self.claims.lease_s:
                raise NotTried("this pass took too long: the next one goes on")
            results = send(
                self._transport,
                topic=claimed.destination.topic,
                messages=messages,
                batch_id=str(claimed.batch_id),
                timeout_s=self._timeout_s,
            )
        except CatmqError as error:
            return _Attempt(claimed, ids, error=error)
        return _Attempt(claimed, ids, results)

    def _settle(self, attempt: _Attempt, result: PassResult) -> None:
        """Delete the rows that are stored, and handle the failure of the others."""
        claimed, pacing = attempt.claimed, self._pacing_of(attempt.claimed.destination)
        # An attempt with an error has no results: zip is empty then.
        stored = [
            row
            for row, outcome in zip(attempt.ids, attempt.results, strict=False)
            if not isinstance(outcome, CatmqError)
        ]
        if stored:
            result.sent += self.claims.delete_stored(stored, claimed.batch_id)
        if len(stored) == len(attempt.ids):
            self._not_stored.discard(claimed.batch_id)
            pacing.backoff.reset()
            pacing.not_before = 0.0
            # After a split, the batches double until they have their full size again.
            pacing.max_messages = min(BATCH_MESSAGES, 2 * pacing.max_messages)
            return
        error = attempt.error
        if error is None:
            errors = [o for o in attempt.results if isinstance(o, CatmqError)]
            first = next((e for e in errors if e.retriable), errors[0])
            # Retriable in any case: other messages of the batch may be stored, so only a
            # repeat under the same id is safe.
            error = CatmqError(first.detail, code=first.code, retriable=True)
        result.error = error
        if isinstance(error, Unauthenticated):
            raise error
        self._handle_failure(attempt, error, pacing, result)

    def _handle_failure(
        self, attempt: _Attempt, error: CatmqError, pacing: _Pacing, result: PassResult
    ) -> None:
        claimed, count = attempt.claimed, len(attempt.ids)
        if isinstance(error, NotTried):
            result.ready_batches += 1
            return
        if error.outcome_unknown or attempt.results:
            self._not_stored.discard(claimed.batch_id)
        # A closed queue has looked the batch id up: it would know a stored batch. A node that
        # is away has not. A batch that is invalid now was invalid in every earlier try.
        is_not_stored = (
            error.code in QUEUE_CLOSED
            or isinstance(error, InvalidRequest | OptionError)
            or claimed.batch_id in self._not_stored
        )
        next_step = after_failure(
            error, kind=Kind.FREE, messages=count, tries=0, unknown=not is_not_stored
        )
        if next_step is NextStep.REPEAT:
            pacing.not_before = self._clock() + pacing.backoff.next_s(error)
            result.delayed_batches += 1
        elif next_step is NextStep.MOVE:
            result.ready_batches += 1
            self._dissolve(claimed)
            pacing.not_before = self._clock() + pacing.backoff.next_s(error)
            topic, queue = claimed.destination
            if routes := self._routes(topic):
                routes.avoid(queue, whole_node=error.code in NODE_AWAY)
                if layout := self._layouts.refresh(topic, after_refusal=True):
                    routes.replace(layout)
        elif next_step is NextStep.SPLIT and not errors_by_index(error, count):
            # The error does not name the invalid messages: halve the batch until it has
            # only one message.
            pacing.max_messages = max(1, count // 2)
            result.ready_batches += 1
            self._dissolve(claimed)
        else:
            self._not_stored.discard(claimed.batch_id)
            # An error that names no message concerns all of them.
            reasons = errors_by_index(error, count) or dict.fromkeys(
                range(count), error.detail
            )
            failed = {
                attempt.ids[index]: f"{error.code}: {reason}"
                for index, reason in reasons.items()
            }
            self.claims.fail(claimed, failed)
            result.failed += len(failed)
            log.error(
                "%d messages for topic %s were refused: %s",
                len(failed),
                claimed.destination.topic,
                error,
            )

    def _dissolve(self, claimed: ClaimedBatch) -> None:
        self.claims.return_to_waiting(claimed)
        self._not_stored.discard(claimed.batch_id)
