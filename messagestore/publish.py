"""Sends: every message stored exactly once, in the order of its queue.

A batch is cut into one part per queue, and each part is one transaction on one node. Its queue is
fixed before the first try: named by the client, or the slot of the key, or a pure function of the
batch id. `sent_batch` makes a repeat harmless. A part may go to another queue only while it is
certain that no earlier try stored it. Messages with a delay are parts of their own, which go the same
way into the table of delayed messages (delays.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from messagestore import batch_ids, connections, delays, durability, faults, floors, lanes, tables
from messagestore.connections import Node
from messagestore.delays import DelayedReceipt
from messagestore.heads import board
from messagestore.messages import NewMessage, digest, message_id, validate
from messagestore.tables import NewBatch, NewDelayed
from messagestore.writes import DEADLINE_S, Write
from metadata import access, rates, snapshot
from metadata.actors import Actor
from metadata.errors import (
    CatmqError,
    Code,
    FieldError,
    Invalid,
    NodeUnavailable,
    NotFound,
    NoWritableQueue,
    OutcomeUnknown,
    Unavailable,
)
from metadata.rules import routing
from metadata.snapshot import TopicInfo


class Receipt(NamedTuple):
    """Where a message was stored."""

    queue: int
    offset: int

    @property
    def message_id(self) -> str:
        """The message's id."""
        return message_id(self.queue, self.offset)


Fate = Receipt | DelayedReceipt | CatmqError


class Part(NamedTuple):
    """The messages of a batch that go to one queue; `queues` are the choices, the first one preferred.

    `delayed`: they go there later.
    """

    queues: tuple[int, ...]
    movable: bool
    delayed: bool
    indexes: list[int]

    @property
    def number(self) -> int:
        """Tells the parts of a batch apart, wherever they are stored in the end."""
        return (self.delayed << 62) + 2 * self.queues[0] + self.movable


def publish(*, topic: str, messages: Sequence[NewMessage], batch_id: UUID | None, actor: Actor) -> list[Fate]:
    """Stores messages; for each, in order, its receipt or the error of its queue.

    Raises Invalid, TooLarge, NotFound, Forbidden or RateLimited before anything is stored, and the first
    part's error if nothing could be stored.
    """
    access.require(actor, "produce", topic)
    info = snapshot.find_topic(topic)
    validate(messages)
    rates.admit(topic=info, actor=actor, messages=len(messages), size=lambda: _size(messages))
    batch = _Batch(info, messages, batch_id, actor.name)
    fates: list[Fate] = [Invalid("not routed")] * len(messages)
    parts = batch.parts()
    batch.check_times(parts)
    for part in parts:
        for index, fate in zip(part.indexes, batch.store(part), strict=True):
            fates[index] = fate
    if isinstance(fates[0], CatmqError) and all(isinstance(fate, CatmqError) for fate in fates):
        raise fates[0]
    return fates


def _size(messages: Sequence[NewMessage]) -> int:
    return sum(len(message.body) for message in messages)


class _Batch:
    """One request on its way into the tables."""

    def __init__(
        self, topic: TopicInfo, messages: Sequence[NewMessage], batch_id: UUID | None, producer: str
    ) -> None:
        self.topic = topic
        self.messages = messages
        self.producer = producer
        self.deadline = time.monotonic() + DEADLINE_S
        # An id made here was never sent before, so no earlier try of it can have been stored.
        self.fresh = batch_id is None
        self.id = batch_ids.new() if batch_id is None else batch_ids.check(batch_id)

    def parts(self) -> list[Part]:
        """The batch cut by queue, in the order of each queue's first message."""
        anywhere = routing.candidates(self.id, self._readable())
        parts: dict[tuple[int, bool, bool], Part] = {}
        named: dict[int | None, Part] = {}  # of messages without a delay that name their queue
        for index, message in enumerate(self.messages):
            delayed = message.delay_ms is not None or message.deliver_at_ms is not None
            known = None if delayed else named.get(message.queue)
            if known is not None:
                known.indexes.append(index)
                continue
            home, movable = self._home(index, message, anywhere[0])
            if (home, movable, delayed) not in parts:
                queues = self._choices(home, anywhere) if movable else (home,)
                parts[home, movable, delayed] = Part(queues, movable, delayed, [])
            part = parts[home, movable, delayed]
            part.indexes.append(index)
            if message.queue is not None and not delayed:
                named[message.queue] = part
        return list(parts.values())

    def part_id(self, part: Part) -> bytes:
        """The batch id of a part."""
        return routing.derived_batch_id(self.id, part.number).bytes

    def check_times(self, parts: Sequence[Part]) -> None:
        """Raises Invalid, naming every time of delivery that has long passed or is too far away."""
        wrong = [
            error
            for part in parts
            if part.delayed
            for error in delays.wrong_times(
                messages={index: self.messages[index] for index in part.indexes},
                queues=part.queues,
                batch_id=None if self.fresh else self.part_id(part),
            )
        ]
        if wrong:
            raise Invalid(f"{wrong[0].field}: {wrong[0].message}", errors=wrong)

    def _readable(self) -> tuple[int, ...]:
        """The topic's queues that are read. The closed ones among them count, so that a repeat of a send that
        was stored just before its queue was closed comes by there, and is found."""
        known = snapshot.current().queues
        states = ("read_write", "read_only")
        live = tuple(one for one in self.topic.queues if one in known and known[one].state in states)
        return live or self.topic.queues

    def _choices(self, home: int, anywhere: Sequence[int]) -> tuple[int, ...]:
        """The queues a part may go to, its home first.

        `sent_batch` is per node, so a part that may have been sent before stays on its home's node: there a
        repeat finds it, whichever queue it is in. If its home is closed it may go on to the others: a repeat
        comes the same way, and asks every closed queue's node on it.
        """
        choices = (home, *(queue for queue in anywhere if queue != home))
        if self.fresh:
            return choices
        info = snapshot.find_queue(home)
        near = tuple(queue for queue in choices if snapshot.find_queue(queue).node_id == info.node_id)
        return near if info.state == "read_write" else tuple(dict.fromkeys((*near, *choices)))

    def _home(self, index: int, message: NewMessage, free: int) -> tuple[int, bool]:
        """(preferred queue, whether another will do) of a message."""
        if message.queue is not None:
            if message.queue not in self.topic.queues and not self._is_new(message.queue):
                mine = ", ".join(map(str, self.topic.queues))
                what = f"{message.queue} is not a queue of topic {self.topic.name}; its queues are {mine}"
                error = FieldError(f"messages[{index}].queue", what)
                raise NotFound(f"{error.field}: {what}", code=Code.QUEUE_NOT_FOUND, errors=[error])
            return message.queue, False
        if message.key is None:
            return free, True
        return routing.queue_for_key(message.key, self.topic.layout), self.topic.keyed != "strict"

    def _is_new(self, queue: int) -> bool:
        """Whether the topic got this queue a moment ago: clients may hear of it before this process."""
        found, _ = snapshot.find_queues([queue])
        return queue in found and found[queue].topic_id == self.topic.id

    def store(self, part: Part) -> Sequence[Fate]:
        """The fate of each message of a part."""
        if time.monotonic() > self.deadline:
            what = "Not tried: the other queues of this request took all its time."
            return [faults.RolledBack(what)] * len(part.indexes)
        error: CatmqError | None = None
        for queue in part.queues:
            try:
                return self._delay(part, queue) if part.delayed else self._write(part, queue)
            except CatmqError as refusal:
                error = refusal
                if not self._may_go_elsewhere(queue, self.part_id(part), refusal):
                    break
        if error is None or (part.movable and error.code == Code.QUEUE_NOT_WRITABLE):
            error = NoWritableQueue(
                f"No queue of topic {self.topic.name} takes messages now.", retry_after_ms=1000
            )
        return [error] * len(part.indexes)

    def _write(self, part: Part, queue: int) -> Sequence[Fate]:
        stored, first = _Write(self, part).into(queue)
        return [Receipt(stored, first + position) for position in range(len(part.indexes))]

    def _delay(self, part: Part, queue: int) -> Sequence[Fate]:
        messages = [self.messages[index] for index in part.indexes]
        return delays.store(
            queue=queue,
            messages=[NewDelayed(one, by_key=self._goes_by_key(one)) for one in messages],
            batch_id=self.part_id(part),
            producer=self.producer,
            name=str(self.id),
            fresh=self.fresh,
            deadline=self.deadline,
        )

    def _goes_by_key(self, message: NewMessage) -> bool:
        """Whether its key chose its queue, here or in the client, which names what it chose."""
        if message.key is None:
            return False
        return message.queue in (None, routing.queue_for_key(message.key, self.topic.layout))

    def _may_go_elsewhere(self, queue: int, part_id: bytes, refusal: CatmqError) -> bool:
        if isinstance(refusal, OutcomeUnknown):
            return False
        if refusal.code == Code.QUEUE_NOT_WRITABLE:
            return True  # said only after `sent_batch` was found not to know the batch
        if refusal.code == Code.NODE_FULL:
            return self.fresh  # the other choices of one that may have been sent before are on the same node
        return isinstance(refusal, Unavailable) and (self.fresh or _absent(queue, part_id))


def _absent(queue: int, part_id: bytes) -> bool:
    try:
        with connections.node_of(queue).reading() as session:
            return tables.find_batch(session, batch_id=part_id) is None
    except CatmqError:
        return False  # nobody can say, so the part stays with its queue


class _Write(Write[tuple[int, int]]):
    """A part on its way into a message table: (queue, first offset)."""

    def __init__(self, request: _Batch, part: Part) -> None:
        messages = [request.messages[index] for index in part.indexes]
        part_id = request.part_id(part)
        super().__init__(part_id, digest(messages), name=str(request.id), fresh=request.fresh)
        self.deadline = request.deadline
        self.batch = NewBatch(part_id, self.digest, messages, request.producer)

    def store(self, node: Node, queue: int, *, alone: bool) -> tuple[int, int]:
        """See Write."""
        first = lanes.store(node=node, queue=queue, batch=self.batch, alone=alone)
        head = first + len(self.batch.messages)
        floors.stored(queue, head)
        board.note(queue, head)
        return queue, first

    def known(self, node: Node) -> tuple[int, int] | None:
        """See Write."""
        with node.reading() as session:
            known = tables.find_batch(session, batch_id=self.batch_id)
        if known is None:
            return None
        self.compare(known.digest)
        head = known.first_offset + known.message_count
        try:
            durability.confirm(node_id=node.info.id, heads={known.queue: head})
        except NodeUnavailable as error:
            raise faults.Ambiguous(f"It is stored, but perhaps not durably: {error.detail}") from error
        return known.queue, known.first_offset
