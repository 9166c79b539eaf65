"""A pull that may wait.

It reads once. If there is nothing, and nothing to tell, the thread waits behind the positions it
read from, without a database connection, until a head passes one of them, the group's generation
moves, the broker is pulled out or stops, or the time is over; then it reads once more, but only the
queues with news and those that could not be read before, and answers. It reads again only where it got
further, behind messages that a tag filter leaves out: whatever else wakes it for nothing cannot make it
spin here.

Waiting threads are capped (`max_waiters`) below the number of threads of the worker: above the cap
a pull is answered at once, empty, so that sends and commits always find a thread; the answer says when
to ask again. So it is if one consumer waits in too many pulls at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from django.db import close_old_connections

from brokerapi.http import draining
from messagestore.consume import pull
from messagestore.consume.pull import PulledQueue, PullQueue
from messagestore.heads.heads import board
from metadata.cache import snapshot
from metadata.config import config
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import Unavailable
from metadata.limits.concurrency import limiter
from metadata.limits.places import Places

# States that a client can do nothing about: worth waiting for their end like for a message.
WAITING_STATES = ("ok", "stopped", "unavailable")
# Nothing tells when a node is back, or what its replica got meanwhile: such a pull is tried again then.
UNAVAILABLE_WAIT_S = 1.0
LATE_WAIT_S = 0.25  # the same for a node that is only slow to answer
# A pull that got behind messages which a filter leaves out says so within it: till then they count as unread.
PASSED_WAIT_S = 2.0
TURNED_AWAY_MS = (1_000, 2_000)  # pause of a client that found no place to wait, at random

PLACES_OF_ONE = 8  # for the pulls of one consumer: it needs one, and a second while it changes brokers

_places = Places(most=config.max_waiters, most_of_one=PLACES_OF_ONE)


class Asked(NamedTuple):
    """Request of a pull; `generation` is the one of the group that the member has applied."""

    generation: int
    queues: Sequence[PullQueue]
    max_messages: int
    max_bytes: int
    wait_ms: int


class Pulled(NamedTuple):
    """Answer to a pull; `generation` is the group's now. `retry_after_ms`: no place to wait was free."""

    generation: int
    queues: list[PulledQueue]
    assignment_changed: bool
    retry_after_ms: int | None = None


def pull_or_wait(*, consumer: ConsumerId, asked: Asked) -> Pulled:
    """Messages of the asked queues, waiting up to `wait_ms` for the first.

    Raises Draining, NodeUnavailable.
    """
    draining.check()
    answer = _pull(consumer, asked)
    if asked.wait_ms == 0 or _worth_telling(answer):
        return answer
    if not _places.take(consumer.text):
        return answer._replace(retry_after_ms=min(asked.wait_ms, random.randint(*TURNED_AWAY_MS)))
    try:
        return _waited(consumer, asked, answer, until=time.monotonic() + asked.wait_ms / 1000)
    finally:
        _places.give_back(consumer.text)


def _waited(consumer: ConsumerId, asked: Asked, answer: Pulled, *, until: float) -> Pulled:
    """The answer at the first news, or at the end; soon after messages that were left out, too, and at once
    after `scan_limit` of them, so that a group commits how far it is."""
    passed = _passed(asked, answer)
    while True:
        if passed:
            until = min(until, time.monotonic() + PASSED_WAIT_S)
        asked = _behind(asked, answer)
        wait = _Wait(consumer, asked, answer, until)
        wait.run()
        answer = _pull_again(consumer, asked, {queue.queue: queue for queue in answer.queues}, wait.to_read())
        moved = _passed(asked, answer)
        passed += moved
        if not moved or passed >= config.scan_limit or _worth_telling(answer) or time.monotonic() >= until:
            return answer


def _passed(asked: Asked, answer: Pulled) -> int:
    """Number of messages that were left out."""
    if any(queue.rows for queue in answer.queues):
        return 0
    pairs = zip(asked.queues, answer.queues, strict=True)
    return sum(got.next_offset - ask.offset for ask, got in pairs if got.state == "ok")


def _behind(asked: Asked, answer: Pulled) -> Asked:
    """The same pull, from where the answer ends."""
    pairs = zip(asked.queues, answer.queues, strict=True)
    queues = [ask._replace(offset=got.next_offset) if got.state == "ok" else ask for ask, got in pairs]
    return asked._replace(queues=queues)


def _pull(consumer: ConsumerId, asked: Asked) -> Pulled:
    queues = pull.pull(
        consumer=consumer, queues=asked.queues, max_messages=asked.max_messages, max_bytes=asked.max_bytes
    )
    return _answer(consumer, asked, queues)


def _pull_again(
    consumer: ConsumerId, asked: Asked, before: Mapping[int, PulledQueue], wanted: Set[int]
) -> Pulled:
    """The answer with the wanted queues read anew."""
    some = asked._replace(queues=[position for position in asked.queues if position.queue in wanted])
    try:
        fresh = {queue.queue: queue for queue in _pull(consumer, some).queues} if wanted else {}
    except Unavailable:
        if len(wanted) == len(before):
            raise
        fresh = {}
    found = {**before, **fresh}
    return _answer(consumer, asked, [found[position.queue] for position in asked.queues])


def _answer(consumer: ConsumerId, asked: Asked, queues: list[PulledQueue]) -> Pulled:
    generation = _generation(consumer.group_id, asked.generation)
    return Pulled(generation, queues, generation != asked.generation)


def _generation(group_id: int, otherwise: int) -> int:
    """The group's generation as this broker knows it; a group it does not know (yet) has not changed."""
    group = snapshot.current().groups.get(group_id)
    # A snapshot may be older than the heartbeat that told the member its generation.
    return otherwise if group is None else max(group.generation, otherwise)


def _worth_telling(answer: Pulled) -> bool:
    if answer.assignment_changed:
        return True
    return any(queue.rows or queue.state not in WAITING_STATES for queue in answer.queues)


class _Wait:
    """The wait between two reads of a pull, for at most until a time (monotonic)."""

    def __init__(self, consumer: ConsumerId, asked: Asked, answer: Pulled, until: float) -> None:
        self.group_id = consumer.group_id
        self.generation = asked.generation
        # A stopped queue may hold messages already: what ends its wait is the group's next generation.
        # In one whose next message is too young others make no difference.
        young = [queue.ripe_in_ms for queue in answer.queues if queue.ripe_in_ms is not None]
        served = [queue for queue in answer.queues if queue.state == "ok" and not _late(queue)]
        served = [queue for queue in served if queue.ripe_in_ms is None]
        self.offsets = {queue.queue: queue.next_offset for queue in served}
        self.unread = {
            queue.queue for queue in answer.queues if queue.stale or queue.queue not in self.offsets
        }
        self.until = until
        if young:
            self.until = min(until, time.monotonic() + min(young) / 1000)
        if any(queue.state == "unavailable" or queue.stale for queue in answer.queues):
            self.until = min(self.until, time.monotonic() + UNAVAILABLE_WAIT_S)
        if any(map(_late, answer.queues)):
            self.until = min(self.until, time.monotonic() + LATE_WAIT_S)

    def run(self) -> None:
        """Returns when there is news or the time is over; a wake-up without news is slept over."""
        close_old_connections()
        while (left_s := self.until - time.monotonic()) > 0:
            with board.watch(self.group_id, self.offsets) as waiter:
                # What happened before the waiter was registered would wake nobody.
                if self._news():
                    return
                with limiter.aside():
                    waiter.wait(left_s)

    def _news(self) -> bool:
        if draining.hurries() or _generation(self.group_id, self.generation) != self.generation:
            return True
        return any(board.known(queue) > offset for queue, offset in self.offsets.items())

    def to_read(self) -> Set[int]:
        """The queues with news, and those that could not be read from their nodes."""
        risen = {queue for queue, offset in self.offsets.items() if board.known(queue) > offset}
        return risen | self.unread


def _late(queue: PulledQueue) -> bool:
    """Return True if the pull did not wait for the queue's node."""
    return queue.state == "ok" and queue.head is None
