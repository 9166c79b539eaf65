"""Searches messages by content: key, tag, trace id, a header, text in the body, and time.

There is no index but the primary key, because every send would pay for others (see
docs/decisions/0012-look-ups.md). Storage times never fall within a queue, so a binary
search turns times into offsets. The rest is read in chunks. Each is a statement of
milliseconds without locks, and the larger the messages, the smaller the chunks. A request
reads a limited number of offsets for a limited time, and returns where to continue. As in
pulls, only durable messages are found.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct, structs

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
from metadata.rules.rights import Right

CHUNK = 5_000  # offsets, at most
MIN_CHUNK = 50
CHUNK_S = 0.1  # a chunk that takes longer is followed by a smaller chunk
MAX_SCANNED = 1_000_000  # offsets that a request reads
MAX_S = 2.0
# concurrent searches of a process: each keeps its node and a core busy
PLACES = 3
PLACES_PER_ACTOR = 2  # concurrent searches of an API key or person
BUSY_MS = 1_000  # the client should wait this long before it tries again

_slots = Places(most=PLACES, most_per_caller=PLACES_PER_ACTOR)


class SearchResult(Struct, frozen=True):
    """Messages in the order of their queues, the number of offsets read, and the id to
    continue from.

    `next` is None if nothing is left. `masked`: the actor may not read bodies and headers,
    so they are left out.
    """

    messages: tuple[StoredMessage, ...]
    scanned: int
    next: str | None
    masked: bool = False


class TimeRange(Struct, frozen=True):
    """Stored at or after `from_ms` and before `to_ms`, ms since 1970 UTC. None: no bound."""

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
    """Return at most `limit` messages that match, from the message id `after` on.

    Needs `browse` on the topic, or the right of a person to look. Raises NotFound
    (topic_not_found, queue_not_found), Invalid, NodeUnavailable, and RateLimited or
    Unavailable (busy) if too many searches are running.
    """
    may_read = access.require_look(actor, topic, snapshot.origin_of(topic))
    if not may_read and (wanted.body_part is not None or wanted.header is not None):
        # The matches would reveal what bodies and headers contain.
        access.require(actor, Right.BROWSE, topic)
    if not 1 <= limit <= config.max_pull_messages:
        raise Invalid.field(
            "limit", f"{limit} is not within 1 and {config.max_pull_messages}"
        )
    if None not in (times.from_ms, times.to_ms) and times.from_ms >= times.to_ms:  # type: ignore[operator]
        raise Invalid.field("to_ms", f"{times.to_ms} is not after from_ms, {times.from_ms}")
    info = snapshot.find_topic(topic)
    queues = sorted(info.queues if queue is None else [queue])
    start_queue, start = parse_message_id(after) if after is not None else (queues[0], 0)
    for checked_queue in (queues[0], start_queue):
        require_queue(info, checked_queue)
    run = _Search(wanted, times, limit)
    with _occupy_slot(actor):
        for searched_queue in queues:
            if searched_queue >= start_queue and not run.search_queue(
                searched_queue, start if searched_queue == start_queue else 0
            ):
                break
    result = run.result()
    return (
        result
        if may_read
        else structs.replace(
            result, messages=tuple(map(masked, result.messages)), masked=True
        )
    )


@contextmanager
def _occupy_slot(actor: Actor) -> Iterator[None]:
    """Occupy a slot for searches. Raises RateLimited or Unavailable if none is
    free.
    """
    owner = (actor.kind, actor.name)
    if not _slots.take(owner):
        if _slots.holds_full_share(owner):
            detail = (
                f"{actor.kind} {actor.name} already runs {PLACES_PER_ACTOR} searches. "
                "Wait for them."
            )
            raise RateLimited(detail, retry_after_ms=BUSY_MS)
        detail = "Too many searches are running; more would slow down sends. Try again."
        raise Unavailable(detail, retry_after_ms=BUSY_MS)
    try:
        yield
    finally:
        _slots.give_back(owner)


class _Search:
    """A search over the queues of a topic, with its limits."""

    def __init__(self, wanted: MessageSearch, times: TimeRange, limit: int) -> None:
        self._wanted, self._times, self._limit = wanted, times, limit
        self._ends_at = time.monotonic() + MAX_S
        self._messages: list[StoredMessage] = []
        self._scanned = self._bytes = 0
        # Start small: the size of the messages is not known yet.
        self._chunk = min(CHUNK, 10 * MIN_CHUNK)
        self._next: str | None = None

    def result(self) -> SearchResult:
        """Return the result so far."""
        return SearchResult(tuple(self._messages), self._scanned, self._next)

    def search_queue(self, queue: int, start: int) -> bool:
        """Search a queue from an offset on. Return False if a limit ended the search."""
        head = durability.head_of(queue=queue)
        if head is None:
            return True
        with node_pools.node_of(queue).reading() as session:
            for first, end in self._chunks(
                session, queue, (max(start, head.low), head.head)
            ):
                if (
                    len(self._messages) >= self._limit
                    or self._bytes >= config.max_pull_bytes
                    or self._scanned >= MAX_SCANNED
                    or time.monotonic() > self._ends_at
                ):
                    self._next = message_id(queue, first)
                    return False
                room = self._limit - len(self._messages)
                most_bytes = config.max_pull_bytes - self._bytes
                started_at = time.monotonic()
                matches = message_sql.search_range(
                    session,
                    queue=queue,
                    bounds=(first, end),
                    wanted=self._wanted,
                    most=room,
                    most_bytes=most_bytes,
                )
                self._adapt_chunk(time.monotonic() - started_at)
                self._messages += matches
                matched_bytes = sum(len(message.body) for message in matches)
                self._bytes += matched_bytes
                # The limit may have cut the result, so the next request starts after the
                # last match.
                if matches and (len(matches) == room or matched_bytes >= most_bytes):
                    cut_at = matches[-1].offset + 1
                    self._scanned += cut_at - first
                    self._next = message_id(queue, cut_at)
                    return False
                self._scanned += end - first
        return True

    def _chunks(
        self, session: Session, queue: int, bounds: tuple[int, int]
    ) -> Iterator[tuple[int, int]]:
        """Yield offset ranges (first, end) to read, in rising order, without declared gaps."""
        first, end_of_range = bounds
        if (from_ms := self._times.from_ms) is not None:
            first = first_at(session, queue=queue, bounds=bounds, at_ms=from_ms)
        if (to_ms := self._times.to_ms) is not None:
            # Storage times only rise, so the end is not before the start just found.
            end_of_range = first_at(
                session, queue=queue, bounds=(first, end_of_range), at_ms=to_ms
            )
        for gap_first, gap_end in [
            *queue_sql.read_gaps(session, queue=queue, position=first),
            (end_of_range, end_of_range),
        ]:
            while first < min(gap_first, end_of_range):
                end = min(first + self._chunk, gap_first, end_of_range)
                yield first, end
                first = end
            first = max(first, gap_end)

    def _adapt_chunk(self, took_s: float) -> None:
        """Choose the size of the next chunk by the duration of the last chunk."""
        fitting = self._chunk // 2 if took_s > CHUNK_S else self._chunk * 2
        self._chunk = min(CHUNK, max(MIN_CHUNK, fitting))
