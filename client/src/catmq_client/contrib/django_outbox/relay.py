"""The relay: carries messages from the outbox to the brokers, each stored once, each key in
order.

One pass: batches whose end is unknown go again as they were; then rows that wait become
batches, one for each queue, and go. A queue with an open batch gets no other before that
one has ended, so nothing of a key overtakes. What follows a failed try says
`after_failure`, with a limit in no time: a batch that may be stored goes again as it was,
for ever. What a queue refused for certain waits again, and goes where the layout says then;
of messages that were refused the others of their batch wait again. A key that the brokers
do not know ends the relay: nothing of that is the messages' fault.
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

from catmq_client.contrib.django_outbox.claims import Claimed, Claims, Place, Waiting
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

log = logging.getLogger("catmq.outbox")

BATCH_MESSAGES = 500
BATCH_BYTES = 1024 * 1024
LAYOUT_AGE_S = 60.0
IN_FLIGHT = 8  # batches, each for another queue
# Shares of the lease: no try begins later than the first after the lease was renewed, and
# none takes longer
# than the second. So it has ended before another relay may take over.
TRY_WITHIN, TIMEOUT = 0.3, 0.6


class NotTried(CatmqError, retriable=True):
    """A batch was left for the next pass."""


@dataclass(slots=True)
class Pass:
    """Result of one pass: messages `sent` and `failed`, batches to go again as they are
    (`left`) or otherwise (`undone`)."""

    sent: int = 0
    failed: int = 0
    left: int = 0
    undone: int = 0
    error: CatmqError | None = None

    @property
    def advanced(self) -> bool:
        """Return True if another pass may find something to do at once."""
        return bool(self.sent or self.failed or self.undone)


@dataclass(slots=True)
class _Target:
    """A place's recent fate: when it may be tried again, and how much at once."""

    backoff: Backoff
    not_before: float = 0.0
    most: int = BATCH_MESSAGES


@dataclass(frozen=True, slots=True)
class _Try:
    """A batch that was sent, and how that ended: its results or an error."""

    claimed: Claimed
    ids: list[int]
    results: list[Outcome] = field(default_factory=list)
    error: CatmqError | None = None


def name_of_this_relay() -> str:
    """host-pid and four hex digits: no two relays have the same."""
    return f"{socket.gethostname()[:60]}-{os.getpid()}-{secrets.token_hex(2)}"


class Relay:
    """Sends what lies in the outbox; only while its `claims` hold the lease."""

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
        self._targets: dict[Place, _Target] = {}
        self._closed_topics: dict[str, _Target] = {}
        # What this pass found out about topics: routes, or why there are none.
        self._seen: dict[str, Routes | CatmqError] = {}
        # Batches claimed here all of whose tries, if any, were refused for certain.
        self._unstored: set[UUID] = set()
        self._begun = 0.0

    def run_once(self) -> Pass:
        """One pass. Raises LeaseLost, Unauthenticated, DatabaseError; a repeat is always
        safe.
        """
        done = Pass()
        self._begun, self._seen = self._clock(), {}
        opened = self.claims.open()
        waiting = self.claims.waiting(
            busy=self._busy(opened),
            closed={one.place.topic for one in opened if one.place.queue is None}
            | self._shut(),
        )
        batches = self._batched(waiting, {one.place for one in opened}, done)
        if batches:
            self._unstored |= self.claims.claim(batches)
        self._send(self.claims.open() if batches else opened, done)
        return done

    def wait_s(self) -> float | None:
        """Seconds until something that failed may be tried again; None if nothing is."""
        now = self._clock()
        due = [
            one.not_before
            for one in (*self._targets.values(), *self._closed_topics.values())
        ]
        later = [one - now for one in due if one > now]
        return min(later) if later else None

    def _target(self, place: Place) -> _Target:
        return self._targets.setdefault(place, _Target(Backoff()))

    def _busy(self, opened: Sequence[Claimed]) -> dict[str, set[int]]:
        """{topic: slots} that no further batch may carry now: their queue has one open, or
        just refused.
        """
        busy: dict[str, set[int]] = {}
        for one in opened:
            busy.setdefault(one.place.topic, set()).update(
                one.slots | self._slots(one.place)
            )
        now = self._clock()
        for place, target in self._targets.items():
            if target.not_before > now:
                busy.setdefault(place.topic, set()).update(self._slots(place))
        return busy

    def _shut(self) -> set[str]:
        """Topics whose layout could not be had a moment ago."""
        return {
            topic
            for topic, one in self._closed_topics.items()
            if one.not_before > self._clock()
        }

    def _routes(self, topic: str) -> Routes | None:
        """The topic's routes, None if no broker tells them now; asks once in a pass."""
        if topic not in self._seen:
            try:
                routes = self._layouts.routes(topic, within_s=0.0)
            except CatmqError as error:
                self._seen[topic] = error
            else:
                layout = self._layouts.refresh(topic, after_refusal=False)
                if layout is not None:
                    routes.replace(layout)
                self._seen[topic] = routes
        found = self._seen[topic]
        return found if isinstance(found, Routes) else None

    def _slots(self, place: Place) -> set[int]:
        routes = self._routes(place.topic)
        slots = () if routes is None else routes.layout.slots
        return {slot for slot, queue in enumerate(slots) if queue == place.queue}

    def _batched(
        self, waiting: Sequence[Waiting], taken: set[Place], done: Pass
    ) -> dict[Place, list[int]]:
        """Rows by place, no more for each than one request takes; a full place takes no
        later row.
        """
        batches: dict[Place, list[int]] = {}
        sizes: dict[Place, int] = {}
        full = set(taken)
        for row in waiting:
            place = self._place(row, full, done)
            if place is None or place in full:
                continue
            target, mine = self._target(place), batches.get(place, [])
            size = sizes.get(place, 0) + row.size
            if (
                target.not_before > self._clock()
                or len(mine) >= target.most
                or (mine and size > BATCH_BYTES)
            ):
                full.add(place)
                continue
            batches.setdefault(place, mine).append(row.id)
            sizes[place] = size
        return batches

    def _place(self, row: Waiting, full: set[Place], done: Pass) -> Place | None:
        """Return a row's destination, None while nobody knows. An unknown topic is for its
        send to tell.
        """
        if row.topic in self._shut():
            return None
        routes = self._routes(row.topic)
        if routes is None:
            return self._unrouted(row.topic, done)
        self._closed_topics.pop(row.topic, None)
        place = Place(
            row.topic, routes.choose(key=row.key, queue=None, strict_queue=True).queue
        )
        if row.key is None and place in full:  # it may go anywhere
            routes.next_queue(after=place.queue)
            place = Place(
                row.topic, routes.choose(key=None, queue=None, strict_queue=True).queue
            )
        return place

    def _unrouted(self, topic: str, done: Pass) -> Place | None:
        error = self._seen[topic]
        if isinstance(error, NotFound):
            return Place(topic, None)
        if isinstance(error, Unauthenticated):
            raise error
        if isinstance(error, CatmqError):
            target = self._closed_topics.setdefault(topic, _Target(Backoff()))
            target.not_before = self._clock() + target.backoff.next_s(error)
            done.error = error
        return None

    def _send(self, batches: Sequence[Claimed], done: Pass) -> None:
        """Send batches at the same time; read and change the database in this thread only."""
        due = [
            one for one in batches if self._target(one.place).not_before <= self._clock()
        ]
        done.left += len(batches) - len(due)
        with ThreadPoolExecutor(
            max_workers=IN_FLIGHT, thread_name_prefix="catmq-outbox"
        ) as pool:
            # bodies of so many batches are in memory
            for start in range(0, len(due), IN_FLIGHT):
                loaded = [
                    (one, *self.claims.messages(one))
                    for one in due[start : start + IN_FLIGHT]
                ]
                for tried in pool.map(lambda batch: self._try(*batch), loaded):
                    self._end(tried, done)

    def _try(
        self, claimed: Claimed, ids: list[int], messages: list[dict[str, Any]]
    ) -> _Try:
        if self._clock() - self._begun > TRY_WITHIN * self.claims.lease_s:
            return _Try(
                claimed,
                ids,
                error=NotTried("this pass took too long: the next one goes on"),
            )
        try:
            results = send(
                self._transport,
                topic=claimed.place.topic,
                messages=messages,
                batch_id=str(claimed.batch_id),
                timeout_s=self._timeout_s,
            )
        except CatmqError as error:
            return _Try(claimed, ids, error=error)
        return _Try(claimed, ids, results)

    def _end(self, tried: _Try, done: Pass) -> None:
        claimed, target = tried.claimed, self._target(tried.claimed.place)
        told = zip(tried.ids, tried.results, strict=False)
        stored = [row for row, one in told if not isinstance(one, CatmqError)]
        if stored:
            done.sent += self.claims.sent(stored, claimed.batch_id)
        if len(stored) == len(tried.ids):
            self._unstored.discard(claimed.batch_id)
            target.backoff.reset()
            target.not_before, target.most = 0.0, min(BATCH_MESSAGES, 2 * target.most)
            return
        error = tried.error or _refusal(tried.results)
        done.error = error
        if isinstance(error, Unauthenticated):
            raise error
        self._after_failure(tried, error, target, done)

    def _after_failure(
        self, tried: _Try, error: CatmqError, target: _Target, done: Pass
    ) -> None:
        claimed, count = tried.claimed, len(tried.ids)
        if isinstance(error, NotTried):
            done.undone += 1
            return
        if error.outcome_unknown or tried.results:
            self._unstored.discard(claimed.batch_id)
        follows = after_failure(
            error,
            kind=Kind.FREE,
            messages=count,
            tries=0,
            unknown=self._may_be_stored(claimed, error),
        )
        if follows is NextStep.REPEAT:
            target.not_before = self._clock() + target.backoff.next_s(error)
            done.left += 1
        elif follows is NextStep.MOVE:
            done.undone += 1
            self._go_elsewhere(claimed, error, target)
        elif follows is NextStep.SPLIT and not errors_by_index(error, count):
            target.most = max(1, count // 2)
            done.undone += 1
            self._let_go(claimed)
        else:
            self._refused(tried, error, done)

    def _may_be_stored(self, claimed: Claimed, error: CatmqError) -> bool:
        """Return True if a try may have stored the batch.

        A closed queue was asked for it, a node that is away was not; what is wrong now was
        wrong before.
        """
        never = error.code in QUEUE_CLOSED or isinstance(
            error, InvalidRequest | OptionError
        )
        return not never and claimed.batch_id not in self._unstored

    def _let_go(self, claimed: Claimed) -> None:
        self.claims.let_go(claimed)
        self._unstored.discard(claimed.batch_id)

    def _go_elsewhere(self, claimed: Claimed, error: CatmqError, target: _Target) -> None:
        self._let_go(claimed)
        target.not_before = self._clock() + target.backoff.next_s(error)
        routes = self._routes(claimed.place.topic)
        if routes is not None:
            routes.avoid(claimed.place.queue, whole_node=error.code in NODE_AWAY)
            layout = self._layouts.refresh(claimed.place.topic, after_refusal=True)
            if layout is not None:
                routes.replace(layout)

    def _refused(self, tried: _Try, error: CatmqError, done: Pass) -> None:
        self._unstored.discard(tried.claimed.batch_id)
        wrong = errors_by_index(error, len(tried.ids)) or dict.fromkeys(
            range(len(tried.ids)), error.detail
        )
        failed = {tried.ids[place]: f"{error.code}: {why}" for place, why in wrong.items()}
        self.claims.fail(tried.claimed, failed)
        done.failed += len(failed)
        log.error(
            "%d messages for topic %s were refused: %s",
            len(failed),
            tried.claimed.place.topic,
            error,
        )


def _refusal(results: Sequence[Outcome]) -> CatmqError:
    """The error of messages that were refused inside an answer; of several, one that may
    pass is told.
    """
    errors = [one for one in results if isinstance(one, CatmqError)]
    error = next((one for one in errors if one.retriable), errors[0])
    # Parts of a batch that was sent before may be stored: only a repeat under the same id
    # is safe.
    return CatmqError(error.detail, code=error.code, retriable=True)
