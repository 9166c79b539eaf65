"""Sends: every message stored exactly once, in the order of its queue.

A batch is cut into one part per queue, and each part is one transaction on one node. The
queue of a part is fixed before the first try: named by the client, or the slot of the key,
or a pure function of the batch id. The record in `sent_batch` makes a repeat harmless. A
part may change its queue only while it is certain that no earlier try stored it. Messages
with a delay form parts of their own, which are stored in the node's table of delayed
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
from messagestore.produce import batch_routing, delayed_store
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
    FieldError,
    Invalid,
    NotFound,
    NoWritableQueue,
    OutcomeUnknown,
    Unavailable,
)
from metadata.rules.topics import routing_rules


class Receipt(NamedTuple):
    queue: int
    offset: int

    @property
    def message_id(self) -> str:
        return message_id(self.queue, self.offset)


MOST_PRODUCER_CHARS = 100  # width of the column; names of users may be longer
Fate = Receipt | DelayedReceipt | CatmqError


class Part(NamedTuple):
    """The messages of a batch that are stored in one queue by one transaction.

    `queues`: the queues to try, in order of preference. `movable`: False if only the first
    will do.
    `delayed`: the messages wait in the table of delayed messages first. `indexes`: places
    of the messages in the request. `of`: number of the part that this one is a piece of, if
    that part's routing was replaced and its messages are routed again.
    """

    queues: tuple[int, ...]
    movable: bool
    delayed: bool
    indexes: list[int]
    of: int | None = None

    @property
    def number(self) -> int:
        """Number of the part, unique in its batch whichever queue stores the part."""
        return (self.delayed << 62) + 2 * self.queues[0] + self.movable


class Run(NamedTuple):
    """Consecutive messages of a request with a common outcome.

    They are stored at consecutive offsets, the first of which is in `fate`, or all are
    refused with the same error. A delayed message is a run of length 1.
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
    access.require(actor, "produce", topic)
    info = snapshot.find_topic(topic)
    if info.failure_of is not None:
        access.require_failed(actor, "produce", topic, snapshot.origin_of(topic))
    return info


def send(
    *, topic: str, messages: Sequence[NewMessage], batch_id: UUID | None, actor: Actor
) -> list[Run]:
    """Store messages and return their outcomes as runs, in the order of the messages.

    Raises Invalid, TooLarge, NotFound, Forbidden or RateLimited before anything is stored.
    Raises the error of the first message if no message was stored; after a partial success,
    errors are in the runs. A read-only topic refuses a part unless an earlier try has
    stored it.
    """
    info = check_may_send(topic=topic, actor=actor)
    validate(messages)
    send_rate_limit.admit(
        topic=info, actor=actor, messages=len(messages), size=lambda: _size(messages)
    )
    batch = _Batch(info, messages, batch_id, actor.name)
    parts = batch.parts()
    batch.check_times(parts)
    stored = list(map(batch.store, parts))
    # Parts of a former routing may meet closed queues. Their messages are routed once more,
    # by the
    # current routing, after every other part has been tried.
    for number, part in enumerate(parts):
        if pieces := batch.pieces(part, stored[number]):
            stored[number] = _merge_runs(pieces, list(map(batch.store, pieces)))
    runs = stored[0] if len(parts) == 1 else _merge_runs(parts, stored)
    if all(isinstance(run.fate, CatmqError) for run in runs) and isinstance(
        runs[0].fate, CatmqError
    ):
        raise runs[0].fate
    return runs


def _merge_runs(parts: Sequence[Part], stored: Iterable[Sequence[Run]]) -> list[Run]:
    """Merge the runs of all parts into runs in the order of the request."""
    fates: dict[int, Fate] = {}
    for part, runs in zip(parts, stored, strict=True):
        fates.update(
            zip(part.indexes, (fate for run in runs for fate in run.fates()), strict=True)
        )
    merged: list[Run] = []
    for index in sorted(fates):
        if merged and _extends(merged[-1], fates[index]):
            merged[-1] = Run(merged[-1].length + 1, merged[-1].fate)
        else:
            merged.append(Run(1, fates[index]))
    return merged


def _extends(run: Run, fate: Fate) -> bool:
    """Return True if a message with this outcome extends the run."""
    if isinstance(run.fate, Receipt):
        return fate == Receipt(run.fate.queue, run.fate.offset + run.length)
    return isinstance(fate, CatmqError) and fate is run.fate


def _size(messages: Sequence[NewMessage]) -> int:
    return sum(len(message.body) for message in messages)


class _Batch:
    """One send request: cuts it into parts, and stores each before a common deadline."""

    def __init__(
        self,
        topic: TopicInfo,
        messages: Sequence[NewMessage],
        batch_id: UUID | None,
        producer: str,
    ) -> None:
        self.topic = topic
        self.messages = messages
        self.producer = producer[:MOST_PRODUCER_CHARS]
        self.deadline = time.monotonic() + DEADLINE_S
        # An id that is generated here was never sent before, so no earlier try can have
        # stored
        # the batch: every lookup of earlier tries is skipped, and all queues of the topic
        # are
        # allowed.
        self.fresh = batch_id is None
        self.id = batch_ids.new() if batch_id is None else batch_ids.check(batch_id)
        self.routing = (
            batch_routing.now(topic)
            if self.fresh
            else batch_routing.of_batch(topic, self.id)
        )

    def parts(self) -> list[Part]:
        """Cut the batch into parts, in the order of the first message of each.

        Raises OutcomeUnknown if a former routing may have been used by an earlier try, and
        the node that could tell is unreachable.
        """
        if not self.fresh and any(message.queue is None for message in self.messages):
            # The client's clock may run ahead, so an earlier try may have used a routing
            # that had
            # ended by the time in the batch id. One stored part proves it; the whole batch
            # is
            # then cut alike.
            for earlier in batch_routing.before_batch(self.topic, self.id):
                parts = self._cut(earlier, range(len(self.messages)))
                if any(
                    _is_known(part.queues[0], self.part_id(part), part.delayed)
                    for part in parts
                ):
                    self.routing = earlier
                    return parts
        return self._cut(self.routing, range(len(self.messages)))

    def _cut(self, routing: Routing, indexes: Iterable[int]) -> list[Part]:
        """Group messages by preferred queue, by whether another will do, and by delayed or
        not.
        """
        parts: dict[tuple[int, bool, bool], Part] = {}
        # Indexes of the messages without a delay that insist on the queue they name. If
        # many
        # messages name the same queue, this saves the look-up of their part.
        indexes_by_queue: dict[int | None, list[int]] = {}
        for index in indexes:
            message = self.messages[index]
            delayed = message.delay_ms is not None or message.deliver_at_ms is not None
            stays_on_queue = message.queue_strict and not delayed
            if stays_on_queue and message.queue in indexes_by_queue:
                indexes_by_queue[message.queue].append(index)
                continue
            home, movable = self._home(routing, index, message)
            if (home, movable, delayed) not in parts:
                queues = self._choices(routing, home) if movable else (home,)
                parts[home, movable, delayed] = Part(queues, movable, delayed, [])
            part = parts[home, movable, delayed]
            part.indexes.append(index)
            if stays_on_queue and message.queue is not None:
                indexes_by_queue[message.queue] = part.indexes
        return list(parts.values())

    def messages_of(self, part: Part) -> Sequence[NewMessage]:
        """Return the messages of a part; a part that is the whole batch is not copied."""
        if len(part.indexes) == len(self.messages):
            return self.messages
        return [self.messages[index] for index in part.indexes]

    def part_id(self, part: Part) -> bytes:
        """Return the id under which `sent_batch` records the part.

        The id depends on the batch id and the part's number, so a repeat of the batch finds
        the record.
        """
        parent_id = (
            self.id if part.of is None else routing_rules.derived_batch_id(self.id, part.of)
        )
        return routing_rules.derived_batch_id(parent_id, part.number).bytes

    def check_times(self, parts: Sequence[Part]) -> None:
        """Raise Invalid with every delivery time that has long passed or is too far away."""
        time_errors = [
            error
            for part in parts
            if part.delayed
            for error in delayed_store.wrong_times(
                messages={index: self.messages[index] for index in part.indexes},
                queues=part.queues,
                batch_id=None if self.fresh else self.part_id(part),
            )
        ]
        if time_errors:
            raise Invalid(
                f"{time_errors[0].field}: {time_errors[0].message}", errors=time_errors
            )

    def _choices(self, routing: Routing, home: int) -> tuple[int, ...]:
        """Return the queues that may store a part, its preferred queue first."""
        others = [
            queue for queue in batch_routing.anywhere(routing, self.id) if queue != home
        ]
        choices = (home, *(queue for queue in others if queue in self.topic.queues))
        if self.fresh:
            return choices
        # `sent_batch` is per node. A part that may have been tried before stays on the node
        # of
        # its preferred queue, where a repeat finds its record whichever queue has the
        # messages.
        # Only if that queue is closed may the part leave the node: a repeat tries the same
        # queues
        # in the same order, and looks for the record on each node that it passes.
        info = snapshot.find_queue(home)
        near = tuple(
            queue for queue in choices if snapshot.find_queue(queue).node_id == info.node_id
        )
        return (
            near if info.state == "read_write" else tuple(dict.fromkeys((*near, *choices)))
        )

    def _home(self, routing: Routing, index: int, message: NewMessage) -> tuple[int, bool]:
        """Return the preferred queue of a message, and whether another queue will do.

        Raises NotFound if the message names a queue that is not the topic's.
        """
        if message.queue is not None:
            if message.queue not in self.topic.queues and not self._is_new(message.queue):
                queues = ", ".join(map(str, self.topic.queues))
                problem = (
                    f"{message.queue} is not a queue of topic {self.topic.name}; its "
                    f"queues are {queues}"
                )
                error = FieldError(f"messages[{index}].queue", problem)
                raise NotFound(
                    f"{error.field}: {problem}", code=Code.QUEUE_NOT_FOUND, errors=[error]
                )
            return message.queue, not message.queue_strict
        if message.key is None:
            return batch_routing.anywhere(routing, self.id)[0], True
        return routing_rules.queue_for_key(
            message.key, routing.layout
        ), routing.keyed != "strict"

    def _is_new(self, queue: int) -> bool:
        """Return True if the queue was just added to the topic.

        A client may have received the new layout from another broker before this process
        reloaded its own.
        """
        queues, _ = snapshot.find_queues([queue])
        return queue in queues and queues[queue].topic_id == self.topic.id

    def store(self, part: Part) -> list[Run]:
        """Store a part in the first of its queues that accepts it, and return the outcomes
        as runs.

        Errors are returned as the outcome of all messages of the part, never raised: other
        parts of the request may be stored.
        """
        if time.monotonic() > self.deadline:
            cause = "Not tried: the other queues of this request used up its time."
            return [Run(len(part.indexes), db_errors.RolledBack(cause))]
        if self.topic.read_only and (topic_refusal := self._refusal(part)):
            return [Run(len(part.indexes), topic_refusal)]
        try:
            queue_elsewhere = self._stored_elsewhere(part)
        except CatmqError as unknown:
            return [Run(len(part.indexes), unknown)]
        write = self._delayed_write(part) if part.delayed else self._write(part)
        error: CatmqError = NoWritableQueue(
            f"No queue of topic {self.topic.name} takes messages now.", retry_after_ms=1000
        )
        # An earlier try stored the part on another node: only there is the repeat
        # recognized.
        for queue in part.queues if queue_elsewhere is None else (queue_elsewhere,):
            try:
                return _runs(part, write.store_once(queue))
            except CatmqError as refusal:
                # A closed queue is no error if the next queue takes the part, so it is
                # reported
                # only for a part that has no other choice.
                if not part.movable or refusal.code != Code.QUEUE_NOT_WRITABLE:
                    error = refusal
                if not self._may_go_elsewhere(queue, write.batch_id, refusal):
                    break
        return [Run(len(part.indexes), error)]

    def _stored_elsewhere(self, part: Part) -> int | None:
        """Return a queue on another node that has stored the part in an earlier try, or
        None.

        An earlier try stored the part elsewhere if its preferred queue was closed then.
        Raises OutcomeUnknown if the preferred queue is open and a node that may have the
        part is unreachable.
        """
        if self.fresh or not part.movable:
            return None
        home = snapshot.find_queue(part.queues[0])
        is_open = home.state == "read_write"
        # The queue may have been reopened since the earlier try. Its node has no record of
        # that
        # try, so the part would be stored a second time. AHEAD_MS allows for a client's
        # clock
        # that runs ahead.
        if (
            is_open
            and batch_ids.time_ms(self.id) >= home.reopened_ms + batch_routing.AHEAD_MS
        ):
            return None
        nodes = {snapshot.find_queue(queue).node_id: queue for queue in self.topic.queues}
        for queue in (queue for node, queue in nodes.items() if node != home.node_id):
            try:
                if _is_known(queue, self.part_id(part), part.delayed):
                    return queue
            except CatmqError:
                # An open preferred queue would accept the part, and perhaps store it twice.
                # A
                # closed one refuses, and then each next queue of the part looks for the
                # record on
                # its node.
                if is_open:
                    raise
        return None

    def _refusal(self, part: Part) -> CatmqError | None:
        """Return the error of a part for a read-only topic, or None if an earlier try
        stored it.

        The repeat of a stored part must be answered with its receipt, not with a refusal.
        If a node is unreachable, the returned error is OutcomeUnknown.
        """
        try:
            if not self.fresh and any(
                _is_known(queue, self.part_id(part), part.delayed) for queue in part.queues
            ):
                return None
        except CatmqError as unknown:
            return unknown
        cause = f"Topic {self.topic.name} is read-only: sends are refused."
        return Conflict(cause, code=Code.TOPIC_READ_ONLY)

    def pieces(self, part: Part, runs: Sequence[Run]) -> list[Part]:
        """Cut a refused part again by the current routing. Return [] if it stays refused.

        A part is cut again if it was cut by a former routing, and its queues are closed and
        are known not to have stored it. A piece is not cut a second time.
        """
        closed = (Code.QUEUE_NOT_WRITABLE, Code.NO_WRITABLE_QUEUE)
        fate = runs[0].fate
        if (
            part.of is not None
            or not isinstance(fate, CatmqError)
            or fate.code not in closed
        ):
            return []
        routing = batch_routing.now(self.topic)
        if self.routing == routing:
            return []
        return [
            piece._replace(of=part.number) for piece in self._cut(routing, part.indexes)
        ]

    def _write(self, part: Part) -> BatchWrite:
        messages, part_id = self.messages_of(part), self.part_id(part)
        batch = NewBatch(part_id, digest(messages), messages, self.producer)
        return BatchWrite(batch, name=self.id, fresh=self.fresh, deadline=self.deadline)

    def _delayed_write(self, part: Part) -> DelayedWrite:
        return DelayedWrite(
            [
                NewDelayed(message, by_key=self._goes_by_key(message))
                for message in self.messages_of(part)
            ],
            batch_id=self.part_id(part),
            producer=self.producer,
            name=str(self.id),
            fresh=self.fresh,
            deadline=self.deadline,
        )

    def _goes_by_key(self, message: NewMessage) -> bool:
        """Return True if the key chose the queue of a message, here or in the client.

        A client that routes by key names the queue that it chose.
        """
        if message.key is None or not message.queue_strict:
            return False
        return message.queue in (
            None,
            routing_rules.queue_for_key(message.key, self.routing.layout),
        )

    def _may_go_elsewhere(self, queue: int, part_id: bytes, refusal: CatmqError) -> bool:
        """Return True if the part may be tried on its next queue, after this queue refused
        it.
        """
        # After an unknown outcome the part may be stored: in another queue it would be
        # there twice.
        if isinstance(refusal, OutcomeUnknown):
            return False
        if refusal.code == Code.QUEUE_NOT_WRITABLE:
            # this error follows a look-up in `sent_batch` that did not find the batch
            return True
        if refusal.code == Code.NODE_FULL:
            # a repeat may only choose queues on the same node, which is full
            return self.fresh
        return isinstance(refusal, Unavailable) and (
            self.fresh or _is_absent(queue, part_id)
        )


def _runs(part: Part, place: tuple[int, int] | list[DelayedReceipt]) -> list[Run]:
    if isinstance(place, list):
        return [Run(1, receipt) for receipt in place]
    return [Run(len(part.indexes), Receipt(*place))]


def _is_known(queue: int, part_id: bytes, delayed: bool) -> bool:
    """Return True if the queue's node has a record of the part.

    Raises OutcomeUnknown if the node is unreachable. A queue that does not exist has no
    part.
    """
    queues, _ = snapshot.find_queues([queue])
    if queue not in queues:
        return False
    find = delayed_sql.find_delayed_batch if delayed else message_sql.find_batch
    try:
        with node_pools.node_of(queue).reading() as session:
            return find(session, batch_id=part_id) is not None
    except CatmqError as error:
        cause = (
            f"It may have been stored in queue {queue}, before the topic's queues "
            f"changed: {error.detail}"
        )
        raise OutcomeUnknown(cause, retry_after_ms=1000) from error


def _is_absent(queue: int, part_id: bytes) -> bool:
    """Return True if the queue's node is certain not to have stored the part."""
    try:
        with node_pools.node_of(queue).reading() as session:
            return message_sql.find_batch(session, batch_id=part_id) is None
    except CatmqError:
        return False  # unknown, so the part stays with its queue
