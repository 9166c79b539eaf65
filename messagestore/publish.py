"""Sends: every message stored exactly once, in the order of its queue.

A batch is cut into one part per queue, and each part is one transaction on one node. Its queue is
fixed before the first try: named by the client, or the slot of the key, or a pure function of the
batch id. `sent_batch` makes a repeat harmless. A part may go to another queue only while it is
certain that no earlier try stored it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import NamedTuple, NoReturn
from uuid import UUID

from messagestore import (
    batch_ids,
    connections,
    durability,
    faults,
    floors,
    lanes,
    partitions,
    suspects,
    tables,
)
from messagestore.connections import Node
from messagestore.heads import board
from messagestore.messages import NewMessage, digest, message_id, validate
from messagestore.tables import NewBatch
from metadata import access, snapshot
from metadata.actors import Actor
from metadata.errors import (
    CatmqError,
    Code,
    Conflict,
    FieldError,
    Invalid,
    NodeUnavailable,
    NotFound,
    NoWritableQueue,
    OutcomeUnknown,
    StoreCorrupt,
    Unavailable,
)
from metadata.rules import routing
from metadata.snapshot import TopicInfo

REPEATS = 3
DEADLINE_S = 8.0  # inside the client's request timeout of 10 s


class Receipt(NamedTuple):
    """Where a message was stored."""

    queue: int
    offset: int

    @property
    def message_id(self) -> str:
        """The message's id."""
        return message_id(self.queue, self.offset)


class Part(NamedTuple):
    """The messages of a batch that go to one queue; `queues` are the choices, the first one preferred."""

    queues: tuple[int, ...]
    movable: bool
    indexes: list[int]

    @property
    def number(self) -> int:
        """Tells the parts of a batch apart, wherever they are stored in the end."""
        return 2 * self.queues[0] + self.movable


def publish(
    *, topic: str, messages: Sequence[NewMessage], batch_id: UUID | None, actor: Actor
) -> list[Receipt | CatmqError]:
    """Stores messages; for each, in order, its receipt or the error of its queue.

    Raises Invalid, TooLarge, NotFound or Forbidden before anything is stored, and the first part's
    error if nothing could be stored.
    """
    access.require(actor, "produce", topic)
    info = snapshot.find_topic(topic)
    validate(messages)
    batch = _Batch(info, messages, batch_id, actor.name)
    fates: list[Receipt | CatmqError] = [Invalid("not routed")] * len(messages)
    for part in batch.parts():
        for index, fate in zip(part.indexes, batch.store(part), strict=True):
            fates[index] = fate
    if isinstance(fates[0], CatmqError) and all(isinstance(fate, CatmqError) for fate in fates):
        raise fates[0]
    return fates


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
        parts: dict[tuple[int, bool], Part] = {}
        for index, message in enumerate(self.messages):
            home, movable = self._home(index, message, anywhere[0])
            if (home, movable) not in parts:
                queues = self._choices(home, anywhere) if movable else (home,)
                parts[home, movable] = Part(queues, movable, [])
            parts[home, movable].indexes.append(index)
        return list(parts.values())

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

    def store(self, part: Part) -> Sequence[Receipt | CatmqError]:
        """The fate of each message of a part."""
        if time.monotonic() > self.deadline:
            what = "Not tried: the other queues of this request took all its time."
            return [faults.RolledBack(what)] * len(part.indexes)
        error: CatmqError | None = None
        write = _Write(self, part)
        for queue in part.queues:
            try:
                stored, first = write.into(queue)
                return [Receipt(stored, first + position) for position in range(len(part.indexes))]
            except CatmqError as refusal:
                error = refusal
                if not self._may_go_elsewhere(queue, write.batch.batch_id, refusal):
                    break
        if error is None or (part.movable and error.code == Code.QUEUE_NOT_WRITABLE):
            error = NoWritableQueue(
                f"No queue of topic {self.topic.name} takes messages now.", retry_after_ms=1000
            )
        return [error] * len(part.indexes)

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


class _Write:
    """One part's way into a queue: tried, and repeated where that is safe."""

    def __init__(self, batch: _Batch, part: Part) -> None:
        messages = [batch.messages[index] for index in part.indexes]
        part_id = routing.derived_batch_id(batch.id, part.number).bytes
        self.request = batch
        self.batch = NewBatch(part_id, digest(messages), messages, batch.producer)

    def into(self, queue: int) -> tuple[int, int]:
        """Where the part is stored: (queue, first offset); elsewhere if an earlier request stored it there.

        Raises what stopped it, and OutcomeUnknown if a try ended unseen and no later one could clear it up.
        """
        doubt: OutcomeUnknown | None = None
        error: CatmqError
        for repeat in range(REPEATS + 1):
            try:
                return self._try(queue, alone=repeat > 0)
            except faults.Ambiguous as fault:
                error = doubt = fault
            except faults.NoPartition as fault:
                error = doubt or _extended(queue, fault)
            except Unavailable as refusal:
                error = doubt or refusal
                if not isinstance(refusal, faults.RolledBack) or refusal.code == Code.NODE_FULL:
                    break
            if repeat == REPEATS or time.monotonic() > self.request.deadline:
                break
            time.sleep(random.uniform(0.005, 0.03) * (repeat + 1))
        raise error

    def _try(self, queue: int, *, alone: bool) -> tuple[int, int]:
        node = connections.node_of(queue)
        if snapshot.find_queue(queue).state == "creating":
            snapshot.refresh()  # clients may hear sooner than this process that it is open
        if snapshot.find_queue(queue).state != "read_write" or node.info.state != "read_write":
            return self._known(node) or _closed(queue, node, "not open for sends")
        if node.info.disk == "full":
            return (None if self.request.fresh else self._known(node)) or _full(node)
        try:
            first = lanes.store(node=node, queue=queue, batch=self.batch, alone=alone)
        except faults.Duplicate as fault:
            return self._known(node) or _corrupt(queue, fault)
        except faults.Refused:
            return self._known(node) or _refused(queue, node)
        head = first + len(self.batch.messages)
        floors.stored(queue, head)
        board.note(queue, head)
        return queue, first

    def _known(self, node: Node) -> tuple[int, int] | None:
        """Where this part is durably stored already, if it is. Raises Conflict if its id is another's."""
        with node.reading() as session:
            known = tables.find_batch(session, batch_id=self.batch.batch_id)
        if known is None:
            return None
        if known.digest != self.batch.digest:
            what = f"batch_id {self.request.id} was already used for other messages; make a new one for each"
            raise Conflict(f"{what} batch", code=Code.BATCH_CONFLICT)
        head = known.first_offset + known.message_count
        try:
            durability.confirm(node_id=node.info.id, heads={known.queue: head})
        except NodeUnavailable as error:
            raise faults.Ambiguous(f"It is stored, but perhaps not durably: {error.detail}") from error
        return known.queue, known.first_offset


def _extended(queue: int, fault: faults.NoPartition) -> CatmqError:
    """Makes the partitions that were missing; the error to report if the repeat meets the same."""
    try:
        partitions.extend(queue)
    except CatmqError as error:
        return error
    return fault


def _full(node: Node) -> NoReturn:
    name = node.info.name
    what = f"The disk of node {name} is nearly full, so it stores nothing. Name a queue on another node."
    raise faults.RolledBack(what, code=Code.NODE_FULL, retry_after_ms=10_000)


def _corrupt(queue: int, fault: faults.Duplicate) -> NoReturn:
    suspects.report(queue, offset=0, why=f"its head is below a stored message ({fault.detail})")
    raise StoreCorrupt(f"Queue {queue}: the head is below a stored message. An operator must look.")


def _refused(queue: int, node: Node) -> NoReturn:
    """Says why the head row refused, once it is certain that the batch is not stored."""
    with node.reading() as session:
        head = tables.read_head(session, queue=queue)
    if head is None:
        _closed(queue, node, "without a head row")
    if head.state != "rw":
        _closed(queue, node, {"ro": "read-only"}.get(head.state, head.state))
    if head.node_epoch != node.info.epoch:
        snapshot.refresh()
    raise faults.RolledBack(f"Queue {queue} on node {node.info.name} changed meanwhile.")


def _closed(queue: int, node: Node, how: str) -> NoReturn:
    what = f"Queue {queue} on node {node.info.name} is {how}. Name another queue, or none."
    raise Conflict(what, code=Code.QUEUE_NOT_WRITABLE)
