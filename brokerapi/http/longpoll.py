"""Pulls that wait for messages (long polling), and reads without a group that wait.

A pull first commits the offsets that came with it, so that they wait for no message. If one
of them is not stored, the pull does not wait, because the client must learn of it.

A pull reads once. If there are no messages and nothing to report, the thread waits without a
database connection until one of the queues has a message, the group's generation changes,
the broker is drained or stops, or the time is over. Then the pull reads again, but only the
queues with news and those that no message wakes (`_LongPoll.queues_to_read`), and answers. It
reads more often only if it advances past messages that a filter leaves out; so no other
wake-up can make it spin.

A thread may wait only while it holds a *place*. There are `max_waiters` places, fewer than
the worker has threads, so that sends and commits always find a thread. A pull that finds no
free place is answered at once, empty, and `retry_after_ms` is the pause of the client. The
same happens if a consumer waits in too many pulls at once, or if the pulls of a single API
key or address have three quarters of the places.

The `board` has the durable heads that this broker knows, and wakes threads that watch them. The
*head* of a queue is its log end offset: the offset that the next message gets. Messages below
the durable head are on disk, and only they are delivered (messagestore/consume/pull.py).
"""

from __future__ import annotations

import random
import time
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import NamedTuple

from django.db import close_old_connections

from brokerapi.http import draining, metrics
from messagestore.consume import positions, pull
from messagestore.consume.positions import CommitOffset, Committed
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

# States of a queue in which a pull continues to wait. The client can do nothing about "stopped"
# and "unavailable", so their end is waited for like a message. Any other state ends the pull.
WAITING_STATES = ("ok", "stopped", "unavailable")
# Nothing wakes a pull when an unavailable node answers again, or when the replica that was
# read instead of it gets messages. So the queue is read again after this time.
UNAVAILABLE_RETRY_S = 1.0
# The same, if the node of a queue was only slow to answer.
SLOW_RETRY_S = 0.25
# A pull that skipped messages which a filter leaves out returns within this time: until the
# client commits past them, they count as unread.
SKIPPED_WAIT_S = 2.0
# Shortest and longest pause of a client that found no free place. Random within these bounds,
# so that such clients spread out.
TURNED_AWAY_MS = (1_000, 2_000)

# The group id that a reader without a group watches. No group has it.
NO_GROUP = 0
# Most places of a consumer. It needs one place, or two while it changes brokers. The others are
# slack; the limit stops a consumer that pulls in parallel from taking all places.
PLACES_PER_CONSUMER = 8

# Places of all waiting threads. The pulls of a single API key or address have at most three
# quarters of them (`most_shared`), the rest stays free for others.
_places = Places(
    most=config.max_waiters,
    most_per_caller=PLACES_PER_CONSUMER,
    most_shared=max(1, config.max_waiters * 3 // 4),
)
# Readers without a group (browsers) may have a quarter of the places, those of a key an
# eighth, so that groups always find places.
_browsers = Places(
    most=max(1, config.max_waiters // 4), most_per_caller=max(1, config.max_waiters // 8)
)


class PlaceOwner(NamedTuple):
    """The arguments with which a place is taken (Places.take).

    `caller` is the consumer or request that waits. The place also counts for each of the
    `shared` identities, its API key and its address.
    """

    caller: Hashable
    shared: tuple[Hashable, ...]


def place_owner(key: Hashable, *, key_id: int | None, address: str) -> PlaceOwner:
    """Return the owner of a place. `key` identifies the caller. All requests without an API
    key count as the same key.
    """
    return PlaceOwner(key, (("key", key_id or 0), ("address", address)))


class PullParameters(NamedTuple):
    """Parameters of a pull. `generation` is the generation that the member has applied,
    `commits` are committed before the queues are read.
    """

    generation: int
    queues: Sequence[PullQueue]
    max_messages: int
    max_bytes: int
    wait_ms: int
    commits: Sequence[CommitOffset] = ()


class PullResult(NamedTuple):
    """Answer to a pull. `generation` is the group's current generation. `retry_after_ms` is
    set if no place to wait was free. `committed` has a result for each of the commits.
    """

    generation: int
    queues: list[PulledQueue]
    assignment_changed: bool
    retry_after_ms: int | None = None
    committed: Sequence[Committed] = ()


def pull_or_wait(
    *, consumer: ConsumerId, parameters: PullParameters, address: str
) -> PullResult:
    """Commit, then pull messages of the queues in `parameters`, waiting up to `wait_ms` for
    the first. `address` is the client's.

    A commit that is refused or not stored is a result of the answer, never an error. Raises
    Draining before anything is done, NodeUnavailable.
    """
    draining.check()
    # In a transaction of its own, before anything is read: a pull that fails or waits has
    # committed, and one that is repeated after a lost answer commits the same again.
    committed = positions.commit_before_pull(
        consumer=consumer,
        offsets=parameters.commits,
        queues=[position.queue for position in parameters.queues],
    )
    if committed:
        metrics.count_committed(consumer.group_id, committed)
    if any(result.state != "ok" for result in committed):
        parameters = parameters._replace(wait_ms=0)
    with _LongPoll(consumer, parameters, address) as poll:
        # Read, then return or wait. The first pass reads all queues; _LongPoll remembers their
        # results, and later passes replace those that are read again.
        while True:
            new_results: list[PulledQueue] = []
            if queues := poll.queues_to_read():
                try:
                    new_results = pull.pull(
                        consumer=consumer,
                        queues=queues,
                        max_messages=parameters.max_messages,
                        max_bytes=parameters.max_bytes,
                    )
                except Unavailable:
                    # After a failed read of some queues, the earlier results are answered.
                    # Only a failed read of all queues is an error.
                    if len(queues) == len(parameters.queues):
                        raise
            answer = poll.merge(new_results)
            if poll.is_over(answer):
                return answer._replace(committed=committed)
            if not poll.find_place():
                retry_ms = min(parameters.wait_ms, random.randint(*TURNED_AWAY_MS))
                return answer._replace(retry_after_ms=retry_ms, committed=committed)
            poll.wait()


def waiting_place(owner: PlaceOwner) -> AbstractContextManager[bool]:
    """Hold a place where a thread may wait. Yields False if none was free."""
    return _places.place(*owner)


def browse_or_wait(
    *,
    topic: str,
    position: tuple[int, int],
    limit: int,
    wait_ms: int,
    actor: Actor,
    as_rows: bool = False,
) -> browse.MessagePage:
    """Read messages of a queue from `position` (queue, offset) on, waiting up to `wait_ms`
    for the first.

    Answers at once if no place to wait is free. Raises as `browse.read_page`.
    """
    queue, offset = position
    until, has_place = time.monotonic() + wait_ms / 1000, False
    # A new object() equals nothing else: the number of places per caller does not apply, but
    # the limits of `_browsers` do.
    owner = place_owner(object(), key_id=actor.key_id, address=actor.address)
    with ExitStack() as places:
        while True:
            page = browse.read_page(
                topic=topic,
                queue=queue,
                offset=offset,
                limit=limit,
                actor=actor,
                as_rows=as_rows,
            )
            at_end = not page.scanned and page.next is None
            if not at_end or draining.must_not_wait() or time.monotonic() >= until:
                return page
            # The reader needs a place of both kinds: of readers without a group, and of all
            # waiting threads. It keeps them until it is answered.
            has_place = has_place or (
                places.enter_context(_browsers.place(actor.key_id or actor.name))
                and places.enter_context(waiting_place(owner))
            )
            if not has_place:
                return page
            close_old_connections()
            with board.watch(NO_GROUP, {queue: offset}) as waiter:
                # Checked after the watch began: earlier news does not wake it.
                if board.durable_head(queue) <= offset and not draining.must_not_wait():
                    # A thread that only waits does not count against the limit of requests
                    # that run at the same time.
                    with limiter.aside():
                        waiter.wait(until - time.monotonic())


def hold(*, wait_ms: int, actor: Actor) -> int:
    """Wait like a reader without a group whose queue gets no message.

    Return the time that it waited, ms: less than `wait_ms` if the broker is drained or
    stops, and 0 if no place to wait is free.
    """
    started_at = time.monotonic()
    until = started_at + wait_ms / 1000
    owner = place_owner(object(), key_id=actor.key_id, address=actor.address)
    with ExitStack() as places:
        has_place = places.enter_context(
            _browsers.place(actor.key_id or actor.name)
        ) and places.enter_context(waiting_place(owner))
        close_old_connections()
        while has_place and (left_s := until - time.monotonic()) > 0:
            with board.watch(NO_GROUP, {}) as waiter:
                # Checked after the watch began: an earlier stop does not wake it.
                if draining.must_not_wait():
                    break
                with limiter.aside():
                    waiter.wait(left_s)
    return int((time.monotonic() - started_at) * 1000)


def _current_generation(group_id: int, otherwise: int) -> int:
    """Return the group's generation in the snapshot, or `otherwise` if that is newer or the
    snapshot lacks the group.
    """
    group = snapshot.current().groups.get(group_id)
    # The member may have its generation from a heartbeat to another broker, before this
    # broker's snapshot has it.
    return otherwise if group is None else max(group.generation, otherwise)


class _LongPoll(ExitStack):
    """A pull between its reads: the results of its queues, the offsets to read next, and
    the time when its wait ends.

    The pull ends at the first news, or when the time is over. It also ends soon after it
    skipped messages that a filter leaves out, and at once after `scan_limit` of them, so that
    the group commits its progress.
    """

    def __init__(
        self, consumer: ConsumerId, parameters: PullParameters, address: str
    ) -> None:
        super().__init__()  # the ExitStack gives the place back at the end
        self._consumer, self._parameters = consumer, parameters
        self._owner = place_owner(consumer.text, key_id=consumer.key_id, address=address)
        self._queues = list(parameters.queues)  # with the offset to read each from next
        self._results: dict[int, PulledQueue] = {}
        self._until = float("-inf")  # monotonic
        self._wait_offsets: dict[int, int] = {}  # by queue: the wait ends above it
        self._has_place = False
        # Number of messages that a filter left out, in reads that returned none.
        self._skipped_in_last_read = self._skipped_in_all_reads = 0

    def queues_to_read(self) -> list[PullQueue]:
        """Return all queues before the first read; later those with news, and those that no
        message wakes.
        """
        # Unwatched: the last wait had no offset to wait for. The queue was unavailable or
        # stopped, its node was slow, or its next message was not due yet.
        unwatched = self._results.keys() - self._wait_offsets.keys()
        # Stale: read from a replica. Its node may answer again.
        stale = {queue for queue, result in self._results.items() if result.stale}
        with_news = {
            queue
            for queue, offset in self._wait_offsets.items()
            if board.durable_head(queue) > offset
        }
        queues_to_read = unwatched | stale | with_news
        return [
            position
            for position in self._queues
            if not self._results or position.queue in queues_to_read
        ]

    def merge(self, new_results: Sequence[PulledQueue]) -> PullResult:
        """Merge new results into those of earlier reads. Return the answer with all queues."""
        self._results |= {result.queue: result for result in new_results}
        results = [self._results[position.queue] for position in self._parameters.queues]
        pairs = list(zip(self._queues, results, strict=True))
        # Reads that advance without returning a message skip messages that a filter leaves out.
        advanced = sum(
            result.next_offset - position.offset
            for position, result in pairs
            if result.state == "ok"
        )
        self._skipped_in_last_read = (
            0 if any(result.rows for result in results) else advanced
        )
        self._skipped_in_all_reads += self._skipped_in_last_read
        self._queues = [
            position._replace(offset=result.next_offset)
            if result.state == "ok"
            else position
            for position, result in pairs
        ]
        generation = _current_generation(
            self._consumer.group_id, self._parameters.generation
        )
        return PullResult(generation, results, generation != self._parameters.generation)

    def is_over(self, answer: PullResult) -> bool:
        """Return True if `answer` ends the pull, False if it must wait or read on."""
        # The client learns of its new queues by a heartbeat, which must not wait for a
        # message.
        if self._parameters.wait_ms == 0 or answer.assignment_changed:
            return True
        if any(queue.rows or queue.state not in WAITING_STATES for queue in answer.queues):
            return True
        # A pull takes its place after the first read. So this was the first read, it had no
        # news, and the pull may wait.
        if not self._has_place:
            return False
        # After a wait, a single read ends the pull, except if that read only skipped messages: then
        # the pull reads on, until the scan limit or the time ends it.
        only_skipped = self._skipped_in_last_read > 0
        limit_reached = (
            self._skipped_in_all_reads >= config.scan_limit
            or time.monotonic() >= self._until
        )
        return limit_reached or not only_skipped

    def find_place(self) -> bool:
        """Take a place to wait, unless the pull has a place. Return False if none is free.
        The time to wait begins when the place is taken.
        """
        if not self._has_place:
            self._has_place = self.enter_context(waiting_place(self._owner))
            self._until = time.monotonic() + self._parameters.wait_ms / 1000
        return self._has_place

    def wait(self) -> None:
        """Wait until there is news or the time is over. Wake-ups without news do not end
        the wait.
        """
        group_id, generation = self._consumer.group_id, self._parameters.generation
        until = self._begin_wait()
        close_old_connections()
        while (left_s := until - time.monotonic()) > 0:
            with board.watch(group_id, self._wait_offsets) as waiter:
                # News before the waiter was registered does not wake it.
                if (
                    draining.must_not_wait()
                    or _current_generation(group_id, generation) != generation
                    or any(
                        board.durable_head(queue) > at
                        for queue, at in self._wait_offsets.items()
                    )
                ):
                    return
                with limiter.aside():
                    waiter.wait(left_s)

    def _begin_wait(self) -> float:
        """Set the offsets to wait for, and return the time (monotonic) when the wait ends."""
        queues = self._results.values()
        # In a queue whose next message is younger than the subscription's delay, new messages
        # change nothing: the wait ends when the next message is due.
        due_in_ms = [queue.due_in_ms for queue in queues if queue.due_in_ms is not None]
        # Queues that a new message wakes. A stopped queue is not among them, because it may hold
        # messages already: the group's next generation ends its wait.
        self._wait_offsets = {
            queue.queue: queue.next_offset
            for queue in queues
            if queue.state == "ok" and queue.due_in_ms is None and not _is_slow(queue)
        }
        # Skipped messages count as lag until the client commits past them.
        if self._skipped_in_all_reads:
            self._until = min(self._until, time.monotonic() + SKIPPED_WAIT_S)
        pauses = [min(due_in_ms) / 1000] if due_in_ms else []
        if any(queue.state == "unavailable" or queue.stale for queue in queues):
            pauses.append(UNAVAILABLE_RETRY_S)
        if any(map(_is_slow, queues)):
            pauses.append(SLOW_RETRY_S)
        return min([self._until, *(time.monotonic() + pause for pause in pauses)])


def _is_slow(queue: PulledQueue) -> bool:
    # The pull did not wait for the queue's node, so the result has no head.
    return queue.state == "ok" and queue.head is None
