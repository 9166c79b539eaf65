"""A pull that may wait.

It reads once. If there is nothing, and nothing to tell, the thread waits behind the
positions it read from, without a database connection, until a head passes one of them, the
group's generation moves, the broker is drained or stops, or the time is over; then it reads
once more, but only the queues with news and those that could not be read before, and
answers. It reads again only where it got further, behind messages that a filter leaves out:
whatever else wakes it for nothing cannot make it spin here.

Waiting threads are capped (`max_waiters`) below the number of threads of the worker: above
the cap a pull is answered at once, empty, so that sends and commits always find a thread;
the answer says when to ask again. So it is if one consumer waits in too many pulls at once,
or if the pulls of one API key or one address have three quarters of the places.
"""

from __future__ import annotations

import random
import time
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from django.db import close_old_connections

from brokerapi.http import draining
from messagestore.consume import pull
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.heads.heads import board
from messagestore.inspect import browse
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.config import config
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import Unavailable
from metadata.limits.concurrency import limiter
from metadata.limits.places import Places

# States that a client can do nothing about: worth waiting for their end like for a message.
WAITING_STATES = ("ok", "stopped", "unavailable")
# Nothing tells when a node is back, or what its replica got meanwhile: such a pull is tried
# again then.
UNAVAILABLE_WAIT_S = 1.0
SLOW_WAIT_S = 0.25  # the same for a node that is only slow to answer
# A pull that got behind messages which a filter leaves out says so within it: till then
# they count as unread.
PASSED_WAIT_S = 2.0
TURNED_AWAY_MS = (1_000, 2_000)  # pause of a client that found no place to wait, at random

NO_GROUP = 0  # whoever reads a queue without a group hears of no change in one
# for the pulls of one consumer: it needs one, and a second while it changes brokers
PLACES_OF_ONE = 8

# A quarter is left for others, however much a key or an address asks for.
_places = Places(
    most=config.max_waiters,
    most_of_one=PLACES_OF_ONE,
    most_shared=max(1, config.max_waiters * 3 // 4),
)
# Nobody needs many readers without a group: they have a quarter, and those of one key half
# of that.
_browsers = Places(
    most=max(1, config.max_waiters // 4), most_of_one=max(1, config.max_waiters // 8)
)


class PlaceOwner(NamedTuple):
    """Whoever waits, and the wider askers whose places it takes: its API key and its
    address.
    """

    who: Hashable
    shared: tuple[Hashable, ...]


def place_owner(who: Hashable, *, key_id: int | None, address: str) -> PlaceOwner:
    """Return the asker for a wait. A request without a key shares the places of all that
    have none.
    """
    return PlaceOwner(who, (("key", key_id or 0), ("address", address)))


class PullParameters(NamedTuple):
    """Request of a pull; `generation` is the one of the group that the member has applied."""

    generation: int
    queues: Sequence[PullQueue]
    max_messages: int
    max_bytes: int
    wait_ms: int


class PullResult(NamedTuple):
    """Answer to a pull; `generation` is the group's now. `retry_after_ms`: no place to wait
    was free.
    """

    generation: int
    queues: list[PulledQueue]
    assignment_changed: bool
    retry_after_ms: int | None = None


def pull_or_wait(
    *, consumer: ConsumerId, asked: PullParameters, address: str
) -> PullResult:
    """Messages of the asked queues, waiting up to `wait_ms` for the first. `address` is the
    client's.

    Raises Draining, NodeUnavailable.
    """
    draining.check()
    with _LongPoll(consumer, asked, address) as poll:
        while True:
            fresh: list[PulledQueue] = []
            if queues := poll.to_read():
                try:
                    fresh = pull.pull(
                        consumer=consumer,
                        queues=queues,
                        max_messages=asked.max_messages,
                        max_bytes=asked.max_bytes,
                    )
                except Unavailable:
                    if len(queues) == len(asked.queues):
                        raise
            answer = poll.take(fresh)
            if poll.is_over(answer):
                return answer
            if not poll.finds_place():
                retry_ms = min(asked.wait_ms, random.randint(*TURNED_AWAY_MS))
                return answer._replace(retry_after_ms=retry_ms)
            poll.wait()


def take_place(waiter: PlaceOwner) -> bool:
    """Take one of the places where a thread may wait; whether one was free for this asker."""
    return _places.take(*waiter)


def give_back_place(waiter: PlaceOwner) -> None:
    _places.give_back(*waiter)


def browse_or_wait(
    *, topic: str, place: tuple[int, int], limit: int, wait_ms: int, actor: Actor
) -> browse.MessagePage:
    """Messages of a queue from an offset on (`place`), waiting up to `wait_ms` for the
    first behind its head.

    Answers at once where no place to wait is free. Raises as `browse.read_page`.
    """
    queue, offset = place
    until = time.monotonic() + wait_ms / 1000
    with _BrowserPlace(actor) as place_to_wait:
        while True:
            found = browse.read_page(
                topic=topic, queue=queue, offset=offset, limit=limit, actor=actor
            )
            at_end = not found.messages and found.next is None
            if not at_end or draining.must_not_wait() or time.monotonic() >= until:
                return found
            if not place_to_wait.take():
                return found
            close_old_connections()
            with board.watch(NO_GROUP, {queue: offset}) as waiter:
                if board.known(queue) <= offset and not draining.must_not_wait():
                    with limiter.aside():
                        waiter.wait(until - time.monotonic())


class _BrowserPlace:
    """The place of a reader without a group, taken when it has to wait and given back at
    the end.
    """

    def __init__(self, actor: Actor) -> None:
        self._key = actor.key_id or actor.name
        self._asker = place_owner(object(), key_id=actor.key_id, address=actor.address)
        self._is_taken = False

    def __enter__(self) -> _BrowserPlace:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._is_taken:
            _places.give_back(*self._asker)
            _browsers.give_back(self._key)

    def take(self) -> bool:
        """Return True if it has a place, or gets one now."""
        if not self._is_taken and _browsers.take(self._key):
            self._is_taken = _places.take(*self._asker)
            if not self._is_taken:
                _browsers.give_back(self._key)
        return self._is_taken


def _generation(group_id: int, otherwise: int) -> int:
    """The group's generation as this broker knows it; a group it does not know (yet) has
    not changed.
    """
    group = snapshot.current().groups.get(group_id)
    # A snapshot may be older than the heartbeat that told the member its generation.
    return otherwise if group is None else max(group.generation, otherwise)


class _LongPoll:
    """A pull between its reads: what is known of its queues, where it goes on, until when
    it waits.

    It ends at the first news, or when the time is over; soon after messages that were left
    out, too, and at once after `scan_limit` of them, so that a group commits how far it is.
    """

    def __init__(self, consumer: ConsumerId, asked: PullParameters, address: str) -> None:
        self._consumer, self._asked = consumer, asked
        self._asker = place_owner(consumer.text, key_id=consumer.key_id, address=address)
        self._queues = list(asked.queues)  # from where each is read next
        self._found: dict[int, PulledQueue] = {}
        self._until = float("-inf")  # monotonic
        self._offsets: dict[int, int] = {}  # behind which it waits
        self._has_place = False
        # messages that were left out: by the last read, and by all
        self._moved = self._passed = 0

    def __enter__(self) -> _LongPoll:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._has_place:
            give_back_place(self._asker)

    def to_read(self) -> list[PullQueue]:
        """All queues; later those with news, and those that could not be read from their
        nodes.
        """
        unread = self._found.keys() - self._offsets.keys()
        unread |= {queue for queue, one in self._found.items() if one.stale}
        wanted = unread | {
            queue for queue, at in self._offsets.items() if board.known(queue) > at
        }
        return [ask for ask in self._queues if not self._found or ask.queue in wanted]

    def take(self, fresh: Sequence[PulledQueue]) -> PullResult:
        """The answer, with some queues read anew."""
        self._found |= {one.queue: one for one in fresh}
        found = [self._found[ask.queue] for ask in self._asked.queues]
        pairs = list(zip(self._queues, found, strict=True))
        moved = sum(got.next_offset - ask.offset for ask, got in pairs if got.state == "ok")
        self._moved = 0 if any(one.rows for one in found) else moved
        self._passed += self._moved
        self._queues = [
            ask._replace(offset=got.next_offset) if got.state == "ok" else ask
            for ask, got in pairs
        ]
        generation = _generation(self._consumer.group_id, self._asked.generation)
        return PullResult(generation, found, generation != self._asked.generation)

    def is_over(self, answer: PullResult) -> bool:
        """Return True if the answer is to be told now."""
        if self._asked.wait_ms == 0 or answer.assignment_changed:
            return True
        if any(queue.rows or queue.state not in WAITING_STATES for queue in answer.queues):
            return True
        if not self._has_place:
            return False
        over = self._passed >= config.scan_limit or time.monotonic() >= self._until
        return not self._moved or over

    def finds_place(self) -> bool:
        """Return True if its thread may wait."""
        if not self._has_place:
            self._has_place = take_place(self._asker)
            self._until = time.monotonic() + self._asked.wait_ms / 1000
        return self._has_place

    def wait(self) -> None:
        """Returns when there is news or the time is over; a wake-up without news is slept
        over.
        """
        group_id, until = self._consumer.group_id, self._waits_until()
        close_old_connections()
        while (left_s := until - time.monotonic()) > 0:
            with board.watch(group_id, self._offsets) as waiter:
                # What happened before the waiter was registered would wake nobody.
                if self._has_news():
                    return
                with limiter.aside():
                    waiter.wait(left_s)

    def _waits_until(self) -> float:
        """Note behind which offsets it waits, and return until when."""
        queues = self._found.values()
        # A stopped queue may hold messages already: what ends its wait is the group's next
        # generation.
        # In one whose next message is too young others make no difference.
        young = [queue.due_in_ms for queue in queues if queue.due_in_ms is not None]
        served = [
            queue for queue in queues if queue.state == "ok" and queue.due_in_ms is None
        ]
        self._offsets = {
            queue.queue: queue.next_offset for queue in served if not _is_slow(queue)
        }
        if self._passed:
            self._until = min(self._until, time.monotonic() + PASSED_WAIT_S)
        pauses = [min(young) / 1000] if young else []
        if any(queue.state == "unavailable" or queue.stale for queue in queues):
            pauses.append(UNAVAILABLE_WAIT_S)
        if any(map(_is_slow, queues)):
            pauses.append(SLOW_WAIT_S)
        return min([self._until, *(time.monotonic() + pause for pause in pauses)])

    def _has_news(self) -> bool:
        generation = self._asked.generation
        if (
            draining.must_not_wait()
            or _generation(self._consumer.group_id, generation) != generation
        ):
            return True
        return any(board.known(queue) > offset for queue, offset in self._offsets.items())


def _is_slow(queue: PulledQueue) -> bool:
    """Return True if the pull did not wait for the queue's node."""
    return queue.state == "ok" and queue.head is None
