"""Sends: every message stored exactly once, in the order of its queue.

A batch is cut into one part per queue (batch_plan.py), and each part is one transaction on
one node. The queue of a part is fixed before the first try: the client names it, or it follows
from the key, or from the batch id. The record in `sent_batch` makes a repeat harmless: it is
answered with the offsets of the first try. A part may change its queue only while it is certain
that no earlier try stored it.

Messages with a delay form parts of their own, which are stored in the node's table of delayed
messages by the same rules (delayed_store.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from messagestore.engine import batch_ids, db_errors
from messagestore.engine.messages import NewMessage, digest, message_id, validate
from messagestore.pool import node_pools
from messagestore.produce import batch_plan, batch_routing, delayed_store
from messagestore.produce.batch_plan import Batch, Part
from messagestore.produce.delayed_store import DelayedReceipt, DelayedWrite
from messagestore.produce.group_commit import BatchWrite
from messagestore.produce.store_retry import DEADLINE_S
from messagestore.tables import delayed_sql, message_sql
from messagestore.tables.shapes import NewBatch, NewDelayed
from metadata.actors import Actor
from metadata.brokers import send_rate_limit
from metadata.cache import snapshot
from metadata.cache.snapshot_types import Routing, TopicInfo
from metadata.db import access
from metadata.errors import (
    CatmqError,
    Code,
    Conflict,
    Invalid,
    NoWritableQueue,
    OutcomeUnknown,
    Unavailable,
)
from metadata.rules.rights import Right
from metadata.rules.topics.states import QueueState

MOST_PRODUCER_CHARS = 100  # width of the column; names of users may be longer
CLOSED_QUEUE_CODES = (Code.QUEUE_NOT_WRITABLE, Code.NO_WRITABLE_QUEUE)


class Receipt(NamedTuple):
    queue: int
    offset: int

    @property
    def message_id(self) -> str:
        return message_id(self.queue, self.offset)


# The outcome of a message: where it was stored, or why it was not.
Fate = Receipt | DelayedReceipt | CatmqError


class FateRun(NamedTuple):
    """Consecutive messages of a request with a common outcome.

    They are stored at consecutive offsets, the first of which is in `fate`, or all are
    refused with the same error. A delayed message is a run of length 1. (Not to be confused
    with the runs of share groups, which are leased.)
    """

    length: int
    fate: Fate

    def fates(self) -> list[Fate]:
        """Return the outcome of each message of the run, in order."""
        if not isinstance(self.fate, Receipt):
            return [self.fate] * self.length
        queue, first = self.fate
        return [Receipt(queue, offset) for offset in range(first, first + self.length)]


def publish(
    *, topic: str, messages: Sequence[NewMessage], batch_id: UUID | None, actor: Actor
) -> list[Fate]:
    """Store messages and return the outcome of each, in order. Raises the same errors as
    `send`.
    """
    runs = send(topic=topic, messages=messages, batch_id=batch_id, actor=actor)
    return [fate for run in runs for fate in run.fates()]


def check_may_send(*, topic: str, actor: Actor) -> TopicInfo:
    """Return the topic if the actor may send to it. Raises Forbidden, NotFound.

    Request handlers call this before they parse the messages, which may be large.
    """
    access.require(actor, Right.PRODUCE, topic)
    info = snapshot.find_topic(topic)
    if info.failure_of is not None:
        access.require_failure_origin(
            actor, Right.PRODUCE, topic, snapshot.origin_of(topic)
        )
    return info


def send(
    *, topic: str, messages: Sequence[NewMessage], batch_id: UUID | None, actor: Actor
) -> list[FateRun]:
    """Store messages and return their outcomes as runs, in the order of the messages.

    Raises Invalid, TooLarge, NotFound, Forbidden or RateLimited before anything is stored.
    Raises the error of the first message if no message was stored; after a partial success,
    errors are in the runs. A read-only topic refuses a part unless an earlier try has
    stored it.
    """
    deadline = time.monotonic() + DEADLINE_S
    info = check_may_send(topic=topic, actor=actor)
    validate(messages)
    send_rate_limit.admit(
        topic=info,
        actor=actor,
        messages=len(messages),
        size=lambda: sum(len(message.body) for message in messages),
    )
    named_queues = {message.queue for message in messages if message.queue is not None}
    if unknown_queues := named_queues.difference(info.queues):
        # A client may have received the new layout from another broker before this process
        # reloaded its own.
        snapshot.find_queues(unknown_queues)
    batch = Batch(
        batch_ids.new() if batch_id is None else batch_ids.check(batch_id),
        batch_id is None,
        messages,
        info,
        snapshot.current().queues,
    )
    routing, parts = _plan(batch)
    _check_delivery_times(batch, parts)
    writer = PartWriter(batch, routing, actor.name[:MOST_PRODUCER_CHARS], deadline)
    stored = list(map(writer.store, parts))
    # A batch that was cut by a former routing may find queues closed. The messages of refused
    # parts are then routed once more, by the current routing. That is after all parts have been
    # tried, so that it cannot delay a part that its own queues accept.
    for number, part in enumerate(parts):
        fate = stored[number][0].fate
        if isinstance(fate, CatmqError) and fate.code in CLOSED_QUEUE_CODES:
            batch = batch._replace(queues=snapshot.current().queues)
            if pieces := batch_plan.cut_again(batch, part, routing=routing):
                stored[number] = _merge_runs(pieces, map(writer.store, pieces))
    runs = stored[0] if len(parts) == 1 else _merge_runs(parts, stored)
    if all(isinstance(run.fate, CatmqError) for run in runs) and isinstance(
        runs[0].fate, CatmqError
    ):
        raise runs[0].fate
    return runs


def _plan(batch: Batch) -> tuple[Routing, list[Part]]:
    """Choose the routing of a batch, and cut the batch by it into parts.

    A repeat must be cut like its first try, because only then the records in `sent_batch` are
    found. Raises OutcomeUnknown if an earlier try may have used a former routing, and the node
    that would have its record is unreachable.
    """
    topic, queues = batch.topic, batch.queues
    if batch.has_new_id:
        routing = batch_routing.current_routing(topic, queues)
        return routing, batch_plan.cut(batch, routing)
    if any(message.queue is None for message in batch.messages):
        # Usually the time in the batch id tells the routing of the first try. But the client's
        # clock may run ahead, and then the first try used a routing that had ended by that time.
        # A single part that is stored under its id proves it.
        for earlier in batch_routing.routings_before_batch(
            topic, queues, batch_id=batch.id
        ):
            parts = batch_plan.cut(batch, earlier)
            if any(_is_stored(batch, part, part.queues[0]) for part in parts):
                return earlier, parts
    routing = batch_routing.routing_of_batch(topic, queues, batch_id=batch.id)
    return routing, batch_plan.cut(batch, routing)


def _check_delivery_times(batch: Batch, parts: Sequence[Part]) -> None:
    """Raise Invalid with every delivery time that has long passed or is too far away."""
    time_errors = [
        error
        for part in parts
        if part.delayed
        for error in delayed_store.wrong_times(
            messages={index: batch.messages[index] for index in part.indexes},
            queues=part.queues,
            batch_id=None if batch.has_new_id else batch_plan.part_id(batch, part),
        )
    ]
    if time_errors:
        raise Invalid(
            f"{time_errors[0].field}: {time_errors[0].message}", errors=time_errors
        )


def _merge_runs(
    parts: Sequence[Part], stored: Iterable[Sequence[FateRun]]
) -> list[FateRun]:
    """Merge the runs of all parts into runs in the order of the request."""
    fates: dict[int, Fate] = {}
    for part, runs in zip(parts, stored, strict=True):
        fates.update(
            zip(part.indexes, (fate for run in runs for fate in run.fates()), strict=True)
        )
    merged: list[FateRun] = []
    for index in sorted(fates):
        if merged and _extends(merged[-1], fates[index]):
            merged[-1] = FateRun(merged[-1].length + 1, merged[-1].fate)
        else:
            merged.append(FateRun(1, fates[index]))
    return merged


def _extends(run: FateRun, fate: Fate) -> bool:
    """Return True if a message with this outcome extends the run."""
    if isinstance(run.fate, Receipt):
        return fate == Receipt(run.fate.queue, run.fate.offset + run.length)
    return isinstance(fate, CatmqError) and fate is run.fate


class PartWriter:
    """Stores the parts of one batch. No try begins after `deadline`, a time.monotonic()."""

    def __init__(
        self, batch: Batch, routing: Routing, producer: str, deadline: float
    ) -> None:
        self.batch = batch
        self._routing = routing
        self._producer = producer
        self._deadline = deadline

    def store(self, part: Part) -> list[FateRun]:
        """Store a part in the first of its queues that accepts it. Return the outcomes as runs.

        Errors are returned as the outcome of all messages of the part, never raised: other
        parts of the request may be stored.
        """
        try:
            queues = self._queues_to_try(part)
        except CatmqError as refusal:
            return [FateRun(len(part.indexes), refusal)]
        write = self._new_write(part)
        error: CatmqError = NoWritableQueue(
            f"No queue of topic {self.batch.topic.name} takes messages now.",
            retry_after_ms=1000,
        )
        for queue in queues:
            try:
                stored = write.store_once(queue)
                if isinstance(stored, list):
                    return [FateRun(1, receipt) for receipt in stored]
                return [FateRun(len(part.indexes), Receipt(*stored))]
            except CatmqError as refusal:
                # A closed queue is no error if the next queue takes the part, so it is
                # reported only for a part that has no other choice.
                if not part.movable or refusal.code != Code.QUEUE_NOT_WRITABLE:
                    error = refusal
                if not self._may_try_next_queue(part, queue, refusal):
                    break
        return [FateRun(len(part.indexes), error)]

    def _queues_to_try(self, part: Part) -> tuple[int, ...]:
        """Return the queues that may store a part, in order.

        Raises RolledBack after the deadline, Conflict if the topic is read-only, and
        OutcomeUnknown if an earlier try may have stored the part on a node that is unreachable.
        """
        topic = self.batch.topic
        if time.monotonic() > self._deadline:
            raise db_errors.RolledBack(
                "Not tried: the other queues of this request used up its time."
            )
        # The repeat of a stored part must be answered with its receipt even while the topic is
        # read-only.
        if topic.read_only and (
            self.batch.has_new_id
            or not any(_is_stored(self.batch, part, queue) for queue in part.queues)
        ):
            raise Conflict(
                f"Topic {topic.name} is read-only: sends are refused.",
                code=Code.TOPIC_READ_ONLY,
            )
        # If an earlier try stored the part on another node, it must go there again: only that
        # node answers it with the receipt of the first try.
        earlier_queue = self._queue_of_earlier_try(part)
        return part.queues if earlier_queue is None else (earlier_queue,)

    def _queue_of_earlier_try(self, part: Part) -> int | None:
        """Return a queue of another node than the preferred queue's that has a record of the
        part, None if there is none.

        An earlier try can have stored the part on another node only if the preferred queue was
        closed at that time. So the state of that queue decides:

        * It is open, and was not closed at any time since the batch id was created: None,
          without a search.
        * It is open, but was reopened since: all nodes are searched. Raises OutcomeUnknown if a
          node is unreachable.
        * It is closed: all nodes are searched, unreachable nodes are skipped.
        """
        batch = self.batch
        # The first try of a new id, or a part that must not leave its queue.
        if batch.has_new_id or not part.movable:
            return None
        preferred = batch.queue(part.queues[0])
        is_open = preferred.state == QueueState.READ_WRITE
        # The time in a batch id is that of the client, whose clock may run AHEAD_MS ahead. So only
        # an id with this time or later was certainly created after the queue was reopened.
        trusted_from_ms = preferred.reopened_ms + batch_routing.AHEAD_MS
        if is_open and batch_ids.time_ms(batch.id) >= trusted_from_ms:
            return None
        queue_by_node = {batch.queue(queue).node_id: queue for queue in batch.topic.queues}
        queue_by_node.pop(preferred.node_id, None)
        for queue in queue_by_node.values():
            try:
                if _is_stored(batch, part, queue):
                    return queue
            except CatmqError:
                # An open preferred queue would store the part now, perhaps for the second time. A
                # closed queue refuses it, and then the part's next queues are tried, each of which
                # looks for the record on its own node first.
                if is_open:
                    raise
        return None

    def _new_write(self, part: Part) -> BatchWrite | DelayedWrite:
        """Return the write that stores a part in the table of a queue, or among the delayed
        messages of its node.
        """
        messages = self.batch.messages_of(part)
        part_id = batch_plan.part_id(self.batch, part)
        if not part.delayed:
            return BatchWrite(
                NewBatch(part_id, digest(messages), messages, self._producer),
                name=self.batch.id,
                fresh=self.batch.has_new_id,
                deadline=self._deadline,
            )
        return DelayedWrite(
            [
                NewDelayed(
                    message, by_key=batch_plan.is_routed_by_key(message, self._routing)
                )
                for message in messages
            ],
            batch_id=part_id,
            producer=self._producer,
            name=str(self.batch.id),
            fresh=self.batch.has_new_id,
            deadline=self._deadline,
        )

    def _may_try_next_queue(self, part: Part, queue: int, refusal: CatmqError) -> bool:
        """Return True if the part may be tried on its next queue, after this queue refused it."""
        # After an unknown outcome the part may be stored: in another queue it would be there
        # twice.
        if isinstance(refusal, OutcomeUnknown):
            return False
        if refusal.code == Code.QUEUE_NOT_WRITABLE:
            # The node has looked into `sent_batch` and did not find the part.
            return True
        has_new_id = self.batch.has_new_id
        if refusal.code == Code.NODE_FULL:
            # A repeat must stay on this node, which is full.
            return has_new_id
        if not isinstance(refusal, Unavailable):
            return False
        if has_new_id:
            return True
        try:
            return not _is_stored(self.batch, part, queue)
        except CatmqError:
            # The node does not answer: the part may be stored there, so it stays.
            return False


def _is_stored(batch: Batch, part: Part, queue: int) -> bool:
    """Return True if the node of a queue has a record of the part.

    Raises OutcomeUnknown if the node is unreachable. A queue that does not exist has no part.
    """
    queues, _ = snapshot.find_queues([queue])
    if queue not in queues:
        return False
    find = delayed_sql.find_delayed_batch if part.delayed else message_sql.find_batch
    try:
        with node_pools.node_of(queue).reading() as session:
            return find(session, batch_id=batch_plan.part_id(batch, part)) is not None
    except CatmqError as error:
        cause = (
            f"It may have been stored in queue {queue}, before the topic's queues "
            f"changed: {error.detail}"
        )
        raise OutcomeUnknown(cause, retry_after_ms=1000) from error
