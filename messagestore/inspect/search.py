"""Searches messages by content: key, tag, trace id, a header, text in the body, and time.

Storage times never fall within a queue, so a binary search turns times into offsets. The
range is read in chunks. Each is a statement of milliseconds without locks, and the larger
the messages, the smaller the chunks. A request reads a limited number of offsets for a
limited time, and returns where to continue. As in pulls, only durable messages are found.

A key is looked up in the key index of each queue whose index is ready, the other queues are
read as ranges. The queue that the key maps to now comes first. The others follow,
because the key went there in an earlier layout, or a sender named the queue. Other contents
have no index, because every send would pay for it (docs/decisions/0012-look-ups.md).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum

from msgspec import Struct, structs

from messagestore.engine import db_errors
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
from metadata.grouping import chunks
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
QUEUES_AT_ONCE = 8  # whose indexes are looked into in a round trip
MAX_OFFSET = 1 << 62
OFFSETS_AT_ONCE = 1_000  # of a key in a queue
ROWS_AT_ONCE = 200  # messages of a key that are read in a statement
# A page of a key search that has a message begins no further round trip after this. An index
# of 100 partitions costs MariaDB 1.5 ms, and most keys are in one queue.
MATCH_S = 0.05
BUSY_MS = 1_000  # the client should wait this long before it tries again

log = logging.getLogger(__name__)
_slots = Places(most=PLACES, most_per_caller=PLACES_PER_ACTOR)


class SearchedBy(StrEnum):
    """How the queues of a search were searched."""

    INDEX = "index"
    RANGE = "range"
    BOTH = "both"


class SearchResult(Struct, frozen=True):
    """Messages in the order of their queues, the number of offsets read, and the id to
    continue from.

    `next` is None if nothing is left. `masked`: the actor may not read bodies and headers,
    so they are left out. `by`: whether queues were searched by their key index, by reading
    a range of offsets, or some in either way.
    """

    messages: tuple[StoredMessage, ...]
    scanned: int
    next: str | None
    masked: bool = False
    by: SearchedBy = SearchedBy.RANGE


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
    """Return at most `limit` messages that match, from `after` on: a message id, or `next`
    of an earlier result.

    Needs `browse` on the topic, or the right of a person to look. Raises NotFound
    (topic_not_found, queue_not_found), Invalid, NodeUnavailable, and RateLimited or
    Unavailable (busy) if too many searches are running.
    """
    may_read = access.require_look(actor, topic, snapshot.origin_of(topic))
    if not may_read and (wanted.body_part is not None or wanted.header is not None):
        # The matches would reveal the content of bodies and headers.
        access.require(actor, Right.BROWSE, topic)
    if not 1 <= limit <= config.max_pull_messages:
        raise Invalid.field(
            "limit", f"{limit} is not within 1 and {config.max_pull_messages}"
        )
    if None not in (times.from_ms, times.to_ms) and times.from_ms >= times.to_ms:  # type: ignore[operator]
        raise Invalid.field("to_ms", f"{times.to_ms} is not after from_ms, {times.from_ms}")
    info = snapshot.find_topic(topic)
    queues = sorted(info.queues if queue is None else [queue])
    first_queue: int | None = None
    if after is None:
        # The queue that the key maps to. Named in `next`, because the layout may change
        # between two pages.
        if wanted.key is not None and queue is None and info.layout:
            first_queue = info.queue_for(wanted.key)
        start_queue, start = queues[0] if first_queue is None else first_queue, 0
    else:
        first_text, colon, position = after.rpartition(":")
        start_queue, start = parse_message_id(position)
        if colon:
            first_queue, _ = parse_message_id(f"{first_text}-0")
    for checked_queue in {queues[0], start_queue, first_queue or start_queue}:
        require_queue(info, checked_queue)
    if first_queue is not None:
        queues = [first_queue, *(q for q in queues if q != first_queue)]
    run = _Search(wanted, times, limit, first_queue)
    with _occupy_slot(actor):
        run.search(queues[_position_of(start_queue, queues) :], start)
    result = run.result()
    return (
        result
        if may_read
        else structs.replace(
            result, messages=tuple(map(masked, result.messages)), masked=True
        )
    )


def _position_of(start_queue: int, queues: Sequence[int]) -> int:
    """Return where a search continues: at a queue, or after it if it was retired."""
    if start_queue in queues:
        return queues.index(start_queue)
    return next((i for i, queue in enumerate(queues) if queue > start_queue), len(queues))


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
    """A search over queues of a topic, with its limits.

    `first_queue` is the queue that a search for a key began with, None if the queues are
    searched in the order of their ids.
    """

    def __init__(
        self,
        wanted: MessageSearch,
        times: TimeRange,
        limit: int,
        first_queue: int | None = None,
    ) -> None:
        self._wanted, self._times, self._limit = wanted, times, limit
        self._first_queue = first_queue
        self._began_at = time.monotonic()
        self._messages: list[StoredMessage] = []
        self._scanned = self._bytes = 0
        # Start small: the size of the messages is not known yet.
        self._chunk = min(CHUNK, 10 * MIN_CHUNK)
        self._next: str | None = None
        self._methods: set[SearchedBy] = set()
        self._unusable_indexes: set[int] = set()  # of these queues, although they are ready
        self._queues_at_once = QUEUES_AT_ONCE

    def result(self) -> SearchResult:
        """Return the result so far."""
        by = SearchedBy.BOTH if len(self._methods) > 1 else SearchedBy.RANGE
        if self._methods == {SearchedBy.INDEX}:
            by = SearchedBy.INDEX
        return SearchResult(tuple(self._messages), self._scanned, self._next, by=by)

    def search(self, queues: Sequence[int], start: int) -> None:
        """Search queues in this order, the first of them from offset `start` on, until a
        limit is reached.
        """
        position = 0
        while position < len(queues):
            first = start if position == 0 else 0
            batch = self._indexed_batch(queues, position)
            if not batch:
                if not self.search_queue(queues[position], first):
                    return
                position += 1
                continue
            if self._is_over(MATCH_S if self._messages else MAX_S):
                self._continue_at(queues[position], first)
                return
            message_count = len(self._messages)
            try:
                if not self._search_indexes(batch, first):
                    return
            except db_errors.Final as error:
                # The index was dropped since the snapshot was read, or the node was restored
                # or promoted without it, or a server's crash damaged it.
                if len(self._messages) > message_count:
                    # A second look at these queues would find the same messages again, so
                    # the next request continues after them.
                    last = self._messages[-1]
                    self._continue_at(last.queue, last.offset + 1)
                    return
                if len(batch) > 1:
                    self._queues_at_once = 1  # to find out whose index it is
                    continue
                self._unusable_indexes.update(batch)
                log.warning(
                    "The key index of queue %d cannot be used, so its messages are read: %s. "
                    "If this repeats, run manage.py key_index --check",
                    batch[0],
                    error.detail,
                )
                continue
            position += len(batch)

    def _indexed_batch(self, queues: Sequence[int], position: int) -> list[int]:
        """Return the next queues to look up by index in a round trip, empty if the next queue
        has no index or no key is searched for.
        """
        if self._wanted.key is None:
            return []
        node_id = snapshot.find_queue(queues[position]).node_id
        # The queue that the key maps to has most keys, so it is looked up alone.
        most = 1 if queues[position] == self._first_queue else self._queues_at_once
        batch: list[int] = []
        for queue in queues[position : position + most]:
            info = snapshot.find_queue(queue)
            if (
                not info.key_indexed
                or info.node_id != node_id
                or queue in self._unusable_indexes
            ):
                break
            batch.append(queue)
        return batch

    def _search_indexes(self, batch: Sequence[int], start: int) -> bool:
        """Look a key up in queues of one node that have an index. Return False if a limit
        ended the search. Raises `db_errors.Final`.
        """
        bounds = dict.fromkeys(batch, (0, MAX_OFFSET))
        bounds[batch[0]] = (start, MAX_OFFSET)
        with node_pools.node_of(batch[0]).reading() as session:
            offsets_by_queue = self._find_offsets(session, bounds)
        self._methods.add(SearchedBy.INDEX)
        return all(
            self._read_offsets(queue, offsets, bounds[queue][0])
            for queue, offsets in offsets_by_queue.items()
            if offsets
        )

    def _find_offsets(
        self, session: Session, bounds: Mapping[int, tuple[int, int]]
    ) -> dict[int, list[int]]:
        return message_sql.find_key_offsets(
            session, queues=bounds, key=self._wanted.key or "", most=OFFSETS_AT_ONCE
        )

    def _read_offsets(self, queue: int, offsets: list[int], start: int) -> bool:
        """Read the messages of a key at offsets of a queue, and at later ones if OFFSETS_AT_ONCE
        were found. Return False if a limit ended the search.
        """
        # Most queues do not have the key, so head and times are read only here. Messages that
        # are not durable yet are above this head.
        head = durability.head_of(queue=queue)
        if head is None:
            return True
        with node_pools.node_of(queue).reading() as session:
            first, end = self._time_bounds(
                session, queue, (max(start, head.low), head.head)
            )
            if len(offsets) == OFFSETS_AT_ONCE and first > offsets[0]:
                offsets = self._find_offsets(session, {queue: (first, end)})[queue]
            while offsets:
                last = offsets[-1]
                is_complete = len(offsets) < OFFSETS_AT_ONCE
                in_bounds = [offset for offset in offsets if first <= offset < end]
                for rows in chunks(in_bounds, ROWS_AT_ONCE):
                    if self._is_full() or self._is_over(MAX_S):
                        self._continue_at(queue, rows[0])
                        return False
                    cut_at = self._read_rows(
                        session, queue, (rows[0], rows[-1] + 1), offsets=rows
                    )
                    if cut_at is not None:
                        self._scanned += sum(offset < cut_at for offset in rows)
                        self._continue_at(queue, cut_at)
                        return False
                    self._scanned += len(rows)
                if is_complete or last + 1 >= end:
                    break
                offsets = self._find_offsets(session, {queue: (last + 1, end)})[queue]
        return True

    def _is_full(self) -> bool:
        return (
            len(self._messages) >= self._limit
            or self._bytes >= config.max_pull_bytes
            or self._scanned >= MAX_SCANNED
        )

    def _is_over(self, limit_s: float) -> bool:
        return time.monotonic() - self._began_at > limit_s

    def _continue_at(self, queue: int, offset: int) -> None:
        """Let the next request continue at an offset of a queue."""
        position = message_id(queue, offset)
        self._next = (
            position if self._first_queue is None else f"{self._first_queue}:{position}"
        )

    def search_queue(self, queue: int, start: int) -> bool:
        """Search a queue from an offset on by reading all its rows. Return False if a limit
        ended the search.
        """
        head = durability.head_of(queue=queue)
        if head is None:
            return True
        self._methods.add(SearchedBy.RANGE)
        with node_pools.node_of(queue).reading() as session:
            for first, end in self._chunks(
                session, queue, (max(start, head.low), head.head)
            ):
                if self._is_full() or self._is_over(MAX_S):
                    self._continue_at(queue, first)
                    return False
                started_at = time.monotonic()
                cut_at = self._read_rows(session, queue, (first, end))
                self._adapt_chunk(time.monotonic() - started_at)
                if cut_at is not None:
                    self._scanned += cut_at - first
                    self._continue_at(queue, cut_at)
                    return False
                self._scanned += end - first
        return True

    def _read_rows(
        self,
        session: Session,
        queue: int,
        bounds: tuple[int, int],
        offsets: Sequence[int] | None = None,
    ) -> int | None:
        """Add the messages that match in a range of offsets, or at some `offsets` of it.

        Return the offset after the last message if a limit cut the result, else None.
        """
        room = self._limit - len(self._messages)
        most_bytes = config.max_pull_bytes - self._bytes
        matches = message_sql.search_range(
            session,
            queue=queue,
            bounds=bounds,
            wanted=self._wanted,
            most=room,
            most_bytes=most_bytes,
            offsets=offsets,
        )
        self._messages += matches
        matched_bytes = sum(len(message.body) for message in matches)
        self._bytes += matched_bytes
        # The limit may have cut the result, so the next request starts after the last match.
        if matches and (len(matches) == room or matched_bytes >= most_bytes):
            return matches[-1].offset + 1
        return None

    def _chunks(
        self, session: Session, queue: int, bounds: tuple[int, int]
    ) -> Iterator[tuple[int, int]]:
        """Yield offset ranges (first, end) to read, in rising order, without declared gaps."""
        first, end_of_range = self._time_bounds(session, queue, bounds)
        for gap_first, gap_end in [
            *queue_sql.read_gaps(session, queue=queue, position=first),
            (end_of_range, end_of_range),
        ]:
            while first < min(gap_first, end_of_range):
                end = min(first + self._chunk, gap_first, end_of_range)
                yield first, end
                first = end
            first = max(first, gap_end)

    def _time_bounds(
        self, session: Session, queue: int, bounds: tuple[int, int]
    ) -> tuple[int, int]:
        """Return the part (first, end) of a range of offsets that was stored in the times."""
        first, end = bounds
        if (from_ms := self._times.from_ms) is not None:
            first = first_at(session, queue=queue, bounds=bounds, at_ms=from_ms)
        if (to_ms := self._times.to_ms) is not None:
            # Storage times only rise, so the end is not before the start just found.
            end = first_at(session, queue=queue, bounds=(first, end), at_ms=to_ms)
        return first, end

    def _adapt_chunk(self, took_s: float) -> None:
        """Choose the size of the next chunk by the duration of the last chunk."""
        fitting = self._chunk // 2 if took_s > CHUNK_S else self._chunk * 2
        self._chunk = min(CHUNK, max(MIN_CHUNK, fitting))
