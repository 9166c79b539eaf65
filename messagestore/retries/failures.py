"""Failures: messages whose handler failed are copied for a later retry, or put with the dead.

Who reports one must own its queue: the reader row is checked first. A copy waits on a retry node until its
time has come (delayed_store.py), then lies in a queue of the retry topic of (group, topic), where the same
group reads it; it knows where it came from (`origin`) and how often it failed (`attempt`). After its last
retry a message is *dead*: a row of `dead_message` on that node (dead_letters.py).

The answer says what is durably stored; only then may the client commit the message's offset. A copy's id is
a pure function of the message, so a repeat of the report, or the report of another member that gets the same
message after a crash, finds what is stored and stores nothing more (failure_rules.copy_id). No right to
produce is asked for: nothing may keep a retry from being stored.
"""

from __future__ import annotations

import collections
import itertools
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from messagestore.engine.mysql_session import Session
from messagestore.engine.origins import Origin
from messagestore.heads import durability
from messagestore.pool import node_pools
from messagestore.produce import delayed_store
from messagestore.produce.store_retry import DEADLINE_S
from messagestore.retries.dead_letters import DeadLetterWrite
from messagestore.tables import failure_sql
from messagestore.tables.dead_letter_sql import NewDead
from messagestore.tables.failure_sql import FailingRow, Fence, StoredCopy
from messagestore.tables.shapes import NewDelayed
from messagestore.tables.shares import run_sql
from messagestore.tables.shares.run_sql import Key, Run
from messagestore.topology import retry_topics
from metadata.cache import snapshot
from metadata.cache.snapshot_types import SubscriptionInfo, TopicInfo
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import CatmqError, Code, Conflict, Unavailable
from metadata.grouping import grouped
from metadata.rules.groups import failure_rules
from metadata.rules.groups.sharing import Grant

log = logging.getLogger(__name__)
CHUNK_BYTES = 16 << 20  # of bodies that are held in memory at once


class Failure(NamedTuple):
    """A message whose handler failed; `first_failed_at_ms`: when its owner saw that, by its own clock.

    `last`: its owner tried it as often as it should, in place; it is dead now. `grant`: of the run in which
    a member of a share group has it, which counts instead of an epoch. `delay_ms`: instead of the next delay
    of the subscription.
    """

    queue: int
    epoch: int
    offset: int
    error: str = ""
    first_failed_at_ms: int | None = None
    last: bool = False
    grant: Grant | None = None
    delay_ms: int | None = None


class Retried(NamedTuple):
    """Its copy is stored, the `attempt`-th, and comes at `due_at_ms` by the retry node's clock."""

    queue: int
    offset: int
    attempt: int
    due_at_ms: int


class Dead(NamedTuple):
    """It failed `attempt` times, and that was its last."""

    queue: int
    offset: int
    attempt: int


class Refused(NamedTuple):
    """Nothing was stored. `fenced`: another owner or epoch; `missing`: no such message; `unavailable`: ask
    again."""

    queue: int
    offset: int
    state: str


@dataclass(slots=True)
class Report:
    """Outcome of each message, in one of three lists."""

    retried: list[Retried] = field(default_factory=list)
    dead: list[Dead] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def refuse(self, failures: Iterable[Failure], state: str) -> None:
        self.refused += [Refused(one.queue, one.offset, state) for one in failures]


class _Pair(NamedTuple):
    """Topic (the original one), subscription and retry topic of a group's message."""

    topic: TopicInfo
    subscription: SubscriptionInfo
    failures: TopicInfo


class _Copy(NamedTuple):
    failure: Failure
    pair: _Pair
    id: bytes
    queue: int  # of the retry topic
    attempt: int
    row: FailingRow
    origin: Origin

    @property
    def delay_ms(self) -> int:
        if self.failure.delay_ms is not None:
            return self.failure.delay_ms
        return failure_rules.delay_ms(self.pair.subscription.delivery, self.attempt, self.id)


def report(*, consumer: ConsumerId, failures: Sequence[Failure]) -> Report:
    """Store failed messages for a retry or as dead letters, and return the outcome of each. One node that is
    away refuses only the messages that need it.

    Raises Conflict(no_failure_topic) where failed messages have no place: the group broadcasts, or there is
    no retry node.
    """
    return store(group_id=consumer.group_id, owner=consumer.text, failures=failures)


def store(*, group_id: int, owner: str, failures: Sequence[Failure]) -> Report:
    """Do the same for messages of a group that an owner has, or that have the grants of their runs."""
    known, certain = snapshot.find_queues([one.queue for one in failures])
    work = _Work(group_id, owner, time.monotonic() + DEADLINE_S)
    unknown = [one for one in failures if one.queue not in known]
    work.done.refuse(unknown, "fenced" if certain else "unavailable")
    rest = [one for one in failures if one.queue in known]
    for node_id, mine in grouped((known[one.queue].node_id, one) for one in rest).items():
        work.take(node_id, grouped((one.queue, one) for one in mine))
    return work.done


def _pair(group_id: int, topic_id: int) -> _Pair | None:
    """Return what a topic's messages belong to; None where that cannot be told now."""
    if snapshot.current().subscription(group_id, topic_id) is None:
        snapshot.refresh()  # it may have been made a moment ago
    known = snapshot.current()
    group, topic = known.groups.get(group_id), known.topics.get(topic_id)
    reading = known.subscription(group_id, topic_id)
    if group is None or topic is None or reading is None:
        return None
    try:
        failures = retry_topics.of(group=group, topic=topic)
    except (Unavailable, Conflict) as error:
        if error.code == Code.NO_FAILURE_TOPIC:
            raise
        log.warning("Group %s has no retry topic for %s yet: %s", group.name, topic.name, error.detail)
        return None
    return None if failures is None else _Pair(topic, reading, failures)


class _Work:
    """One report on its way; `end` (time.monotonic): from then on nothing more is begun."""

    def __init__(self, group_id: int, owner: str, end: float) -> None:
        self.done = Report()
        self._group_id, self._owner = group_id, owner
        self._end = end
        self._pairs: dict[int, _Pair | None] = {}  # by topic

    def take(self, node_id: int, by_queue: Mapping[int, list[Failure]]) -> None:
        pairs = {queue: self._pair(queue) for queue in by_queue}
        try:
            with node_pools.node(node_id).reading() as session:
                fences = failure_sql.read_fences(session, group_id=self._group_id, queues=list(by_queue))
                runs = self._runs(session, by_queue)
        except CatmqError as error:
            log.warning("Failed messages of node %d cannot be stored for a retry: %s", node_id, error.detail)
            self.done.refuse(itertools.chain(*by_queue.values()), "unavailable")
            return
        for queue, failures in by_queue.items():
            owned = self._owned(fences.get(queue), failures, runs)
            pair, fence = pairs[queue], fences.get(queue)
            if pair is None or fence is None:
                self.done.refuse(owned, "unavailable")
            else:
                self._copy(node_id, fence, pair, owned)

    def _pair(self, queue: int) -> _Pair | None:
        known = snapshot.current()
        topic_id = known.origin(snapshot.find_queue(queue).topic_id)
        if topic_id not in self._pairs:
            self._pairs[topic_id] = _pair(self._group_id, topic_id)
        return self._pairs[topic_id]

    def _runs(self, session: Session, by_queue: Mapping[int, list[Failure]]) -> Mapping[Key, Run]:
        """The runs that failures of share groups name."""
        leased = {queue: [one.grant for one in mine if one.grant] for queue, mine in by_queue.items()}
        firsts = {queue: {grant.first for grant in grants} for queue, grants in leased.items() if grants}
        return run_sql.read_runs(session, group_id=self._group_id, firsts=firsts) if firsts else {}

    def _is_owned(self, fence: Fence, one: Failure, runs: Mapping[Key, Run]) -> bool:
        if one.grant is None:
            return (fence.epoch, fence.owner) == (one.epoch, self._owner)
        run = runs.get((one.queue, one.grant.first, one.grant.end))
        return run is not None and run.grant == one.grant and run.epoch == fence.epoch and run.has(one.offset)

    def _owned(
        self, fence: Fence | None, failures: Sequence[Failure], runs: Mapping[Key, Run]
    ) -> list[Failure]:
        """Those that their owner reports, and that can be there; the others are refused."""
        found = []
        for one in failures:
            if fence is None or not self._is_owned(fence, one, runs):
                self.done.refuse([one], "fenced")
            elif not fence.low <= one.offset < fence.head:
                self.done.refuse([one], "missing")
            else:
                found.append(one)
        return found

    def _copy(self, node_id: int, fence: Fence, pair: _Pair, failures: Sequence[Failure]) -> None:
        """Copy failed messages of one queue, a bounded part after the other."""
        left = {one.offset: one for one in failures}
        while left:
            try:
                with node_pools.node(node_id).reading() as session:
                    rows = failure_sql.select_failing(
                        session, queue=fence.queue, offsets=sorted(left), most_bytes=CHUNK_BYTES
                    )
            except CatmqError as error:
                log.warning("Failed messages of queue %d cannot be read: %s", fence.queue, error.detail)
                self.done.refuse(left.values(), "unavailable")
                return
            seen = rows[-1].offset if rows else max(left)
            there = {row.offset for row in rows}
            passed = [left.pop(offset) for offset in sorted(left) if offset <= seen]
            self.done.refuse((one for one in passed if one.offset not in there), "missing")
            by_offset = {one.offset: one for one in passed}
            self._store([_as_copy(fence, pair, by_offset[row.offset], row) for row in rows])

    def _store(self, copies: Sequence[_Copy]) -> None:
        nodes = grouped((snapshot.find_queue(one.queue).node_id, one) for one in copies)
        for node_id, mine in nodes.items():
            self._store_on(node_id, mine)

    def _store_on(self, node_id: int, copies: Sequence[_Copy]) -> None:
        """Store copies on their retry node; those it has already are answered as they were."""
        left = collections.deque(copies)
        try:
            stored = _stored(node_id, [one.id for one in copies])
            while left and time.monotonic() < self._end:
                self._answer(left[0], stored.get(left[0].id) or self._stored_now(left[0]))
                left.popleft()
        except CatmqError as error:
            log.warning("Retry node %d stores nothing now: %s", node_id, error.detail)
        self.done.refuse((one.failure for one in left), "unavailable")

    def _stored_now(self, one: _Copy) -> StoredCopy | None:
        """Store a copy; return None if this one cannot be. Raises Unavailable if no other can be either."""
        try:
            return _stored_now(one, self._end)
        except Unavailable:
            raise
        except CatmqError as error:
            log.warning("Message %s cannot be stored for a retry: %s", one.failure[:3], error.detail)
            return None

    def _answer(self, one: _Copy, stored: StoredCopy | None) -> None:
        failure = one.failure
        if stored is None:
            self.done.refuse([failure], "unavailable")
        elif stored.dead:
            self.done.dead.append(Dead(failure.queue, failure.offset, one.attempt))
        else:
            due_at_ms = stored.stored_at_ms + one.delay_ms
            self.done.retried.append(Retried(failure.queue, failure.offset, one.attempt, due_at_ms))


def _as_copy(fence: Fence, pair: _Pair, failure: Failure, row: FailingRow) -> _Copy:
    attempt = row.attempt + 1
    copy_id = failure_rules.copy_id(
        stored_at_ms=row.stored_at_ms,
        subscription=pair.subscription.id,
        queue=failure.queue,
        offset=failure.offset,
        attempt=attempt,
        reset_count=fence.reset_count,
    )
    error = failure.error[: failure_rules.MAX_ERROR_CHARS]
    if row.origin is not None:
        origin = msgspec.structs.replace(msgspec.json.decode(row.origin, type=Origin), error=error)
    else:
        first = failure.first_failed_at_ms if failure.first_failed_at_ms is not None else fence.now_ms
        origin = Origin(pair.topic.name, failure.queue, failure.offset, first, error)
    queue = failure_rules.copy_queue(copy_id, pair.failures.queues)
    return _Copy(failure, pair, copy_id, queue, attempt, row, origin)


def _stored(node_id: int, ids: Sequence[bytes]) -> Mapping[bytes, StoredCopy]:
    with delayed_store.prepared(node_id).reading() as session:
        stored = failure_sql.find_copies(session, batches=ids)
    if stored:
        durability.confirm(node_id=node_id)
    return stored


def _stored_now(one: _Copy, end: float) -> StoredCopy:
    if one.failure.last or failure_rules.is_dead(one.pair.subscription.delivery, one.attempt):
        return _dead_letter(one, end)
    try:
        return _delay(one, end)
    except Conflict as error:
        if error.code != Code.BATCH_CONFLICT:
            raise  # closed for a moment
    # Another member was quicker, and its handler failed in another way.
    return _stored(snapshot.find_queue(one.queue).node_id, [one.id])[one.id]


def _delay(one: _Copy, end: float) -> StoredCopy:
    message = delayed_store.copied(one.row, delay_ms=one.delay_ms)
    copy = NewDelayed(message, attempt=one.attempt, origin=msgspec.json.encode(one.origin).decode())
    (receipt,) = delayed_store.store(
        queue=one.queue, messages=[copy], batch_id=one.id, producer=one.row.producer, deadline=end
    )
    return StoredCopy(dead=False, stored_at_ms=receipt.due_at_ms - one.delay_ms)


def _dead_letter(one: _Copy, end: float) -> StoredCopy:
    row, error = one.row, one.origin.error
    dead = NewDead(
        batch_id=one.id,
        group_id=one.pair.subscription.group_id,
        topic_id=one.pair.topic.id,
        attempts=one.attempt,
        error_class=failure_rules.error_class(error),
        error=error,
        origin=msgspec.json.encode(one.origin).decode(),
        msg_key=row.key,
        tag=row.tag,
        headers=row.headers,
        body=row.body,
        trace_id=row.trace_id,
        producer=row.producer,
    )
    write = DeadLetterWrite(dead)
    write.deadline = end
    return write.store_once(one.queue)
