"""Reports of failed messages: each is copied for a retry, or becomes a dead letter.

The reporting member must own the message's queue, which the reader row on the node decides.
A copy is first a delayed message on a retry node (delayed_store.py). When it is due, it
moves to a queue of the retry topic of (group, topic), which the same group reads. Its
`origin` names the original message, and `attempt` counts the failures. After the last
retry, the message becomes a row of `dead_message` on the retry node (dead_letters.py).

The answer lists the copies that are durably stored. Only after it may the client commit the
offset of a message. The id of a copy is a pure function of the message
(failure_rules.copy_id). So a repeated report, or the report of another member that gets the
message after a crash, finds the stored copy. No right to produce is needed: a missing right
must not prevent the storage of a retry.
"""

from __future__ import annotations

import collections
import itertools
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

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
CHUNK_BYTES = 16 << 20  # bodies that are in memory at the same time


class Failure(NamedTuple):
    """A message whose handler failed.

    `first_failed_at_ms`: time of its first failure by the clock of its owner. `last`: the
    owner has made all retries in place, so the message becomes a dead letter now. `grant`:
    the grant of the run in which a member of a share group has leased the message; it
    replaces the epoch.
    `delay_ms`: replaces the subscription's next retry delay.
    """

    queue: int
    epoch: int
    offset: int
    error: str = ""
    first_failed_at_ms: int | None = None
    last: bool = False
    grant: Grant | None = None
    delay_ms: int | None = None


class Retried(Struct, frozen=True):
    """A message that will be retried (retry number `attempt`) at or soon after `due_at_ms`."""

    queue: int
    offset: int
    attempt: int
    due_at_ms: int  # by the clock of the retry node


class Dead(Struct, frozen=True):
    """A message that failed `attempt` times and has no retry left."""

    queue: int
    offset: int
    attempt: int


class Refused(Struct, frozen=True):
    """A message of which nothing was stored: `state` is fenced, missing or unavailable."""

    queue: int
    offset: int
    # fenced: it has another owner or epoch. missing: there is no such message. unavailable:
    # its member reports it again.
    state: str


class Report(Struct):
    """Each message is in one of the lists. Those in `retried` and `dead` may be committed."""

    retried: list[Retried] = []
    dead: list[Dead] = []
    refused: list[Refused] = []

    def refuse(self, failures: Iterable[Failure], state: str) -> None:
        """Record messages as refused, with the state of `Refused`."""
        self.refused += [
            Refused(failure.queue, failure.offset, state) for failure in failures
        ]


class _Pair(NamedTuple):
    """The original topic of a message, the subscription, and the retry topic (`failures`)."""

    topic: TopicInfo
    subscription: SubscriptionInfo
    failures: TopicInfo


class _Copy(NamedTuple):
    """A failed message, with everything that its copy needs. `attempt`: number of its
    failures.
    """

    failure: Failure
    pair: _Pair
    id: bytes
    queue: int  # of the retry topic
    attempt: int
    row: FailingRow
    origin: Origin

    @property
    def delay_ms(self) -> int:
        """Pause before the retry: as the member requested, or the subscription's next."""
        if self.failure.delay_ms is not None:
            return self.failure.delay_ms
        return failure_rules.delay_ms(
            self.pair.subscription.delivery, self.attempt, self.id
        )


def report(*, consumer: ConsumerId, failures: Sequence[Failure]) -> Report:
    """Store failed messages for a retry or as dead letters, and return the outcome of each.

    If a node is unreachable, only the messages that need it are refused. Raises Conflict
    (no_failure_topic) if the group is broadcasting or there is no retry node.
    """
    return store(group_id=consumer.group_id, owner=consumer.text, failures=failures)


def store(*, group_id: int, owner: str, failures: Sequence[Failure]) -> Report:
    """Store failed messages of a group, like `report`, for the owner of their queues.

    Messages of share groups are checked by the grants of their runs instead of the owner.
    """
    queues, is_certain = snapshot.find_queues([failure.queue for failure in failures])
    work = _Work(group_id, owner, time.monotonic() + DEADLINE_S)
    # A missing queue may only be unknown to this process. While metadata cannot confirm
    # that it is gone, the member must keep the message and report it again.
    without_queue = [failure for failure in failures if failure.queue not in queues]
    work.done.refuse(without_queue, "fenced" if is_certain else "unavailable")
    with_queue = [failure for failure in failures if failure.queue in queues]
    for node_id, node_failures in grouped(
        (queues[failure.queue].node_id, failure) for failure in with_queue
    ).items():
        work.take(node_id, grouped((failure.queue, failure) for failure in node_failures))
    return work.done


def _pair(group_id: int, topic_id: int) -> _Pair | None:
    """Return the topic, subscription and retry topic, or None if any of them is not
    available now.

    Raises Conflict (no_failure_topic).
    """
    if snapshot.current().subscription(group_id, topic_id) is None:
        snapshot.refresh()  # the subscription may have been created a moment ago
    view = snapshot.current()
    group, topic = view.groups.get(group_id), view.topics.get(topic_id)
    subscription = view.subscription(group_id, topic_id)
    if group is None or topic is None or subscription is None:
        return None
    try:
        failures = retry_topics.find_or_make(group=group, topic=topic)
    except (Unavailable, Conflict) as error:
        if error.code == Code.NO_FAILURE_TOPIC:
            raise
        log.warning(
            "Group %s has no retry topic for %s yet: %s",
            group.name,
            topic.name,
            error.detail,
        )
        return None
    return None if failures is None else _Pair(topic, subscription, failures)


class _Work:
    """The processing of a report. No copy is begun after `end`, a time.monotonic()."""

    def __init__(self, group_id: int, owner: str, end: float) -> None:
        self.done = Report()
        self._group_id, self._owner = group_id, owner
        self._end = end
        self._pairs: dict[int, _Pair | None] = {}  # by topic

    def take(self, node_id: int, by_queue: Mapping[int, list[Failure]]) -> None:
        """Store the failed messages of a node, {queue: failures}."""
        pairs = {queue: self._pair(queue) for queue in by_queue}
        try:
            with node_pools.node(node_id).reading() as session:
                # The node decides who owns a queue. A former owner could otherwise store a
                # copy of a message that its new owner handles successfully.
                fences = failure_sql.read_fences(
                    session, group_id=self._group_id, queues=list(by_queue)
                )
                # In share groups the grants of runs take the place of the owner.
                first_offsets = grouped(
                    (queue, failure.grant.first)
                    for queue, queue_failures in by_queue.items()
                    for failure in queue_failures
                    if failure.grant
                )
                runs = run_sql.read_runs(
                    session,
                    group_id=self._group_id,
                    firsts={queue: set(firsts) for queue, firsts in first_offsets.items()},
                )
        except CatmqError as error:
            log.warning(
                "Failed messages of node %d cannot be stored for a retry: %s",
                node_id,
                error.detail,
            )
            self.done.refuse(itertools.chain(*by_queue.values()), "unavailable")
            return
        for queue, failures in by_queue.items():
            owned = self._filter_owned(fences.get(queue), failures, runs)
            pair, fence = pairs[queue], fences.get(queue)
            if pair is None or fence is None:
                self.done.refuse(owned, "unavailable")
            else:
                self._copy_failures(node_id, fence, pair, owned)

    def _pair(self, queue: int) -> _Pair | None:
        view = snapshot.current()
        # A message of a retry topic keeps the pair of its original topic, so a retry that
        # fails goes to the same retry topic again.
        topic_id = view.origin_topic(snapshot.find_queue(queue).topic_id)
        if topic_id not in self._pairs:
            self._pairs[topic_id] = _pair(self._group_id, topic_id)
        return self._pairs[topic_id]

    def _filter_owned(
        self, fence: Fence | None, failures: Sequence[Failure], runs: Mapping[Key, Run]
    ) -> list[Failure]:
        """Return the failures of owned queues at offsets that may exist. Refuse the others."""
        owned = []
        for failure in failures:
            if fence is None:
                is_owned = False
            elif failure.grant is None:
                is_owned = (fence.epoch, fence.owner) == (failure.epoch, self._owner)
            else:
                run = runs.get((failure.queue, failure.grant.first, failure.grant.end))
                is_owned = (
                    run is not None
                    and run.grant == failure.grant
                    and run.epoch == fence.epoch
                    and run.has(failure.offset)
                )
            if fence is None or not is_owned:
                self.done.refuse([failure], "fenced")
            elif not fence.low <= failure.offset < fence.head:
                self.done.refuse([failure], "missing")
            else:
                owned.append(failure)
        return owned

    def _copy_failures(
        self, node_id: int, fence: Fence, pair: _Pair, failures: Sequence[Failure]
    ) -> None:
        """Store copies of the failed messages of a queue, CHUNK_BYTES at a time."""
        unread = {failure.offset: failure for failure in failures}
        while unread:
            try:
                with node_pools.node(node_id).reading() as session:
                    rows = failure_sql.select_failing(
                        session,
                        queue=fence.queue,
                        offsets=sorted(unread),
                        most_bytes=CHUNK_BYTES,
                    )
            except CatmqError as error:
                log.warning(
                    "Failed messages of queue %d cannot be read: %s",
                    fence.queue,
                    error.detail,
                )
                self.done.refuse(unread.values(), "unavailable")
                return
            # The query stops after CHUNK_BYTES of bodies, so offsets above its last row
            # were not reached. Offsets up to there without a row do not exist. Without any
            # row, none exists.
            last_offset = rows[-1].offset if rows else max(unread)
            existing = {row.offset for row in rows}
            handled = [
                unread.pop(offset) for offset in sorted(unread) if offset <= last_offset
            ]
            self.done.refuse(
                (failure for failure in handled if failure.offset not in existing),
                "missing",
            )
            by_offset = {failure.offset: failure for failure in handled}
            copies = [_make_copy(fence, pair, by_offset[row.offset], row) for row in rows]
            for retry_node_id, node_copies in grouped(
                (snapshot.find_queue(copy.queue).node_id, copy) for copy in copies
            ).items():
                self._store_on_node(retry_node_id, node_copies)

    def _store_on_node(self, node_id: int, copies: Sequence[_Copy]) -> None:
        """Store copies on a retry node. A copy that is stored already gets its former
        outcome.
        """
        unstored = collections.deque(copies)
        try:
            stored = _find_stored(node_id, [copy.id for copy in copies])
            # A copy stays in `unstored` until its outcome is recorded, so that an error in
            # between refuses it. The member reports it again, and the copy is then found by
            # its id.
            while unstored and time.monotonic() < self._end:
                copy, failure = unstored[0], unstored[0].failure
                outcome = stored.get(copy.id) or self._store_copy(copy)
                if outcome is None:
                    self.done.refuse([failure], "unavailable")
                elif outcome.dead:
                    self.done.dead.append(Dead(failure.queue, failure.offset, copy.attempt))
                else:
                    due_at_ms = outcome.stored_at_ms + copy.delay_ms
                    self.done.retried.append(
                        Retried(failure.queue, failure.offset, copy.attempt, due_at_ms)
                    )
                unstored.popleft()
        except CatmqError as error:
            log.warning("Retry node %d stores nothing now: %s", node_id, error.detail)
        self.done.refuse((copy.failure for copy in unstored), "unavailable")

    def _store_copy(self, copy: _Copy) -> StoredCopy | None:
        """Store a copy. Return None if this copy cannot be stored.

        Raises Unavailable if the retry node stores nothing now.
        """
        try:
            return _store_copy(copy, self._end)
        except Unavailable:
            raise
        except CatmqError as error:
            log.warning(
                "Message %s cannot be stored for a retry: %s",
                copy.failure[:3],
                error.detail,
            )
            return None


def _make_copy(fence: Fence, pair: _Pair, failure: Failure, row: FailingRow) -> _Copy:
    """Return the copy of a failed message, with its id, its retry queue and its origin."""
    attempt = row.attempt + 1
    # The time of the failure is not part of the id: another member that gets the message
    # after a crash fails at another time, and must find this copy.
    copy_id = failure_rules.copy_id(
        stored_at_ms=row.stored_at_ms,
        subscription=pair.subscription.id,
        queue=failure.queue,
        offset=failure.offset,
        attempt=attempt,
        reset_count=fence.reset_count,
    )
    error = failure.error[: failure_rules.MAX_ERROR_CHARS]
    # A message of the retry topic keeps the origin of its first failure, with the latest
    # error.
    if row.origin is not None:
        origin = msgspec.structs.replace(
            msgspec.json.decode(row.origin, type=Origin), error=error
        )
    else:
        first_failed_at_ms = (
            failure.first_failed_at_ms
            if failure.first_failed_at_ms is not None
            else fence.now_ms
        )
        origin = Origin(
            pair.topic.name, failure.queue, failure.offset, first_failed_at_ms, error
        )
    queue = failure_rules.copy_queue(copy_id, pair.failures.queues)
    return _Copy(failure, pair, copy_id, queue, attempt, row, origin)


def _find_stored(node_id: int, ids: Sequence[bytes]) -> Mapping[bytes, StoredCopy]:
    """Return the copies that a retry node has stored, by id."""
    with delayed_store.prepared(node_id).reading() as session:
        stored = failure_sql.find_copies(session, batches=ids)
    # Copies may be visible before they are on disk. The client commits the offset after
    # this answer, so a copy that a killed server loses would be lost for good.
    if stored:
        durability.confirm(node_id=node_id)
    return stored


def _store_copy(copy: _Copy, end: float) -> StoredCopy:
    """Store a copy as a delayed message or as a dead letter. Raises CatmqError."""
    origin = msgspec.json.encode(copy.origin).decode()
    if copy.failure.last or failure_rules.is_dead(
        copy.pair.subscription.delivery, copy.attempt
    ):
        row, error_text = copy.row, copy.origin.error
        write = DeadLetterWrite(
            NewDead(
                batch_id=copy.id,
                group_id=copy.pair.subscription.group_id,
                topic_id=copy.pair.topic.id,
                attempts=copy.attempt,
                error_class=failure_rules.error_class(error_text),
                error=error_text,
                origin=origin,
                msg_key=row.key,
                tag=row.tag,
                headers=row.headers,
                body=row.body,
                trace_id=row.trace_id,
                producer=row.producer,
            )
        )
        write.deadline = end
        return write.store_once(copy.queue)
    message = delayed_store.copied(copy.row, delay_ms=copy.delay_ms)
    try:
        (receipt,) = delayed_store.store(
            queue=copy.queue,
            messages=[NewDelayed(message, attempt=copy.attempt, origin=origin)],
            batch_id=copy.id,
            producer=copy.row.producer,
            deadline=end,
        )
        return StoredCopy(dead=False, stored_at_ms=receipt.due_at_ms - copy.delay_ms)
    except Conflict as error:
        if error.code != Code.BATCH_CONFLICT:
            raise  # the retry queue is closed for a moment
    # Another member has stored the same copy first, with another error. The first stored
    # copy counts.
    return _find_stored(snapshot.find_queue(copy.queue).node_id, [copy.id])[copy.id]
