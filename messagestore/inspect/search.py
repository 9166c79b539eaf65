"""Looking for messages by what they carry: key, tag, trace id, a header, text of the body,
time.

There is no index but the primary key: one for each of them would be paid by every send (see
docs/decisions/0012-look-ups.md). Times bound the offsets by halving, because they never
fall within a queue; what is left is read in chunks, each a statement of milliseconds that
locks nothing: the heavier the messages, the fewer at once. A request reads so many offsets,
or for so long, and says where to go on. As in pulls, only durable messages are found.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from messagestore.engine.messages import (
    MessageSearch,
    StoredMessage,
    masked,
    message_id,
    parse_message_id,
)
from messagestore.engine.mysql_session import Session
from messagestore.heads import durability
from messagestore.heads.time_lookup import first_at
from messagestore.inspect.browse import require_queue
from messagestore.pool import node_pools
from messagestore.tables import message_sql, queue_sql
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.config import config
from metadata.db import access
from metadata.errors import Invalid, RateLimited, Unavailable
from metadata.limits.places import Places

CHUNK = 5_000  # offsets, at most
LEAST_CHUNK = 50
CHUNK_S = 0.1  # a chunk that takes longer is followed by a smaller one
MOST_SCANNED = 1_000_000  # offsets of one request
MOST_S = 2.0
# searches of a process that are at work at once: each keeps its node and a core busy
PLACES = 3
PLACES_OF_ONE = 2  # of them for one key or person
BUSY_MS = 1_000  # after which it is worth asking again

_places = Places(most=PLACES, most_of_one=PLACES_OF_ONE)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Messages in the order of their queues, how many offsets were looked at for them, and
    the message id to go on from (None: that was all). `masked`: bodies and headers are left
    out: the actor may not."""

    messages: tuple[StoredMessage, ...]
    scanned: int
    next: str | None
    masked: bool = False


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Stored at or after `from_ms` and before `to_ms`, ms since 1970 UTC; None: no bound."""

    from_ms: int | None = None
    to_ms: int | None = None


def search_messages(
    *,
    topic: str,
    wanted: MessageSearch,
    times: TimeRange,
    actor: Actor,
    queue: int | None = None,
    limit: int = 100,
    after: str | None = None,
) -> SearchResult:
    """At most `limit` messages that are all that is wanted, from the message id `after` on.

    Needs `browse` on the topic, or of a person to look. Raises NotFound (topic_not_found,
    queue_not_found), Invalid, NodeUnavailable, and RateLimited or Unavailable (busy) if too
    many are at work.
    """
    reads = access.require_look(actor, topic, snapshot.origin_of(topic))
    if not reads and (wanted.body_part is not None or wanted.header is not None):
        # what is found would tell what bodies and headers say
        access.require(actor, "browse", topic)
    if not 1 <= limit <= config.max_pull_messages:
        raise Invalid.field(
            "limit", f"{limit} is not within 1 and {config.max_pull_messages}"
        )
    if None not in (times.from_ms, times.to_ms) and times.from_ms >= times.to_ms:  # type: ignore[operator]
        raise Invalid.field("to_ms", f"{times.to_ms} is not after from_ms, {times.from_ms}")
    info = snapshot.find_topic(topic)
    queues = sorted(info.queues if queue is None else [queue])
    start_queue, start = parse_message_id(after) if after is not None else (queues[0], 0)
    for named in (queues[0], start_queue):
        require_queue(info, named)
    look = _Look(wanted, times, limit)
    with _place(actor):
        for one in queues:
            if one >= start_queue and not look.goes_on(
                one, start if one == start_queue else 0
            ):
                break
    found = look.found()
    return (
        found
        if reads
        else replace(found, messages=tuple(map(masked, found.messages)), masked=True)
    )


@contextmanager
def _place(actor: Actor) -> Iterator[None]:
    """A place to search in. Raises RateLimited or Unavailable."""
    who = (actor.kind, actor.name)
    if not _places.take(who):
        if _places.has_its_share(who):
            detail = (
                f"{actor.kind} {actor.name} already runs {PLACES_OF_ONE} searches. "
                "Wait for them."
            )
            raise RateLimited(detail, retry_after_ms=BUSY_MS)
        detail = "Too many searches are running; more would slow down sends. Try again."
        raise Unavailable(detail, retry_after_ms=BUSY_MS)
    try:
        yield
    finally:
        _places.give_back(who)


class _Look:
    def __init__(self, wanted: MessageSearch, times: TimeRange, limit: int) -> None:
        self._wanted, self._times, self._limit = wanted, times, limit
        self._ends_at = time.monotonic() + MOST_S
        self._messages: list[StoredMessage] = []
        self._scanned = self._bytes = 0
        self._chunk = min(CHUNK, 10 * LEAST_CHUNK)
        self._next: str | None = None

    def found(self) -> SearchResult:
        return SearchResult(tuple(self._messages), self._scanned, self._next)

    def goes_on(self, queue: int, start: int) -> bool:
        """Look through a queue from an offset on; return True if there is room and time for
        more.
        """
        head = durability.head_of(queue=queue)
        if head is None:
            return True
        with node_pools.node_of(queue).reading() as session:
            for first, end in self._chunks(
                session, queue, (max(start, head.low), head.head)
            ):
                if self._is_over():
                    self._next = message_id(queue, first)
                    return False
                self._read(session, queue, first, end)
                if self._next is not None:
                    return False
        return True

    def _is_over(self) -> bool:
        full = len(self._messages) >= self._limit or self._bytes >= config.max_pull_bytes
        return full or self._scanned >= MOST_SCANNED or time.monotonic() > self._ends_at

    def _chunks(
        self, session: Session, queue: int, bounds: tuple[int, int]
    ) -> Iterator[tuple[int, int]]:
        """Offsets first … end-1 within the bounds, rising; none in declared gaps."""
        if self._times.from_ms is not None:
            bounds = (
                first_at(session, queue=queue, bounds=bounds, at_ms=self._times.from_ms),
                bounds[1],
            )
        if self._times.to_ms is not None:
            bounds = (
                bounds[0],
                first_at(session, queue=queue, bounds=bounds, at_ms=self._times.to_ms),
            )
        first, last = bounds
        for gap_first, gap_end in [
            *queue_sql.read_gaps(session, queue=queue, position=first),
            (last, last),
        ]:
            while first < min(gap_first, last):
                end = min(first + self._chunk, gap_first, last)
                yield first, end
                first = end
            first = max(first, gap_end)

    def _adapt(self, took_s: float) -> None:
        """Choose the size of the next chunk by how long the last one took."""
        fitting = self._chunk // 2 if took_s > CHUNK_S else self._chunk * 2
        self._chunk = min(CHUNK, max(LEAST_CHUNK, fitting))

    def _read(self, session: Session, queue: int, first: int, end: int) -> None:
        room = self._limit - len(self._messages)
        most_bytes = config.max_pull_bytes - self._bytes
        begun = time.monotonic()
        found = message_sql.search_range(
            session,
            queue=queue,
            bounds=(first, end),
            wanted=self._wanted,
            most=room,
            most_bytes=most_bytes,
        )
        self._adapt(time.monotonic() - begun)
        self._messages += found
        weight = sum(len(message.body) for message in found)
        self._bytes += weight
        reached = end
        # there may be more in this chunk
        if found and (len(found) == room or weight >= most_bytes):
            reached = found[-1].offset + 1
            self._next = message_id(queue, reached)
        self._scanned += reached - first
