"""Sends: every message stored exactly once, in the order of its queue.

A batch is cut into one part per queue, and each part is one transaction on one node. Its queue is
fixed before the first try: named by the client, or the slot of the key, or a pure function of the
batch id. `sent_batch` makes a repeat harmless. A part may go to another queue only while it is
certain that no earlier try stored it. Messages with a delay are parts of their own, which go the same
way into the table of delayed messages (delayed_store.py).
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
from metadata.brokers import quotas
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


MOST_PRODUCER_CHARS = 100  # as the column has; names of people may be longer
Fate = Receipt | DelayedReceipt | CatmqError


class Part(NamedTuple):
    """The messages of a batch that go to one queue; `queues` are the choices, the first one preferred.

    `delayed`: they go there later. `of`: the part of an earlier routing that this one is a piece of.
    """

    queues: tuple[int, ...]
    movable: bool
    delayed: bool
    indexes: list[int]
    of: int | None = None

    @property
    def number(self) -> int:
        """Tell the parts of a batch apart, wherever they are stored in the end."""
        return (self.delayed << 62) + 2 * self.queues[0] + self.movable


class Run(NamedTuple):
    """So many messages that follow each other in a request and share a fate: stored side by side from its
    offset on, or refused. One that waits for its time is a run by itself."""

    length: int
    fate: Fate

    def fates(self) -> list[Fate]:
        if not isinstance(self.fate, Receipt):
            return [self.fate] * self.length
        queue, first = self.fate
        return [Receipt(queue, offset) for offset in range(first, first + self.length)]


def publish(*, topic: str, messages: Sequence[NewMessage], batch_id: UUID | None, actor: Actor) -> list[Fate]:
    """Store messages; the fate of each, in order. Raises what `send` raises."""
    runs = send(topic=topic, messages=messages, batch_id=batch_id, actor=actor)
    return [fate for run in runs for fate in run.fates()]


def check_may_send(*, topic: str, actor: Actor) -> TopicInfo:
    """Return the topic if the actor may send to it. Raises Forbidden, NotFound.

    Callers that read a request ask before they read its messages, which may be many.
    """
    access.require(actor, "produce", topic)
    info = snapshot.find_topic(topic)
    if info.failure_of is not None:
        access.require_failed(actor, "produce", topic, snapshot.origin_of(topic))
    return info


def send(*, topic: str, messages: Sequence[NewMessage], batch_id: UUID | None, actor: Actor) -> list[Run]:
    """Store messages; what became of all of them, in order.

    Raises Invalid, TooLarge, NotFound, Forbidden or RateLimited before anything is stored, and the first
    part's error if nothing could be stored. A read-only topic refuses each part that no earlier try stored.
    """
    info = check_may_send(topic=topic, actor=actor)
    validate(messages)
    quotas.admit(topic=info, actor=actor, messages=len(messages), size=lambda: _size(messages))
    batch = _Batch(info, messages, batch_id, actor.name)
    parts = batch.parts()
    batch.check_times(parts)
    stored = list(map(batch.store, parts))
    for place, part in enumerate(parts):
        if pieces := batch.pieces(part, stored[place]):
            stored[place] = _in_order(pieces, list(map(batch.store, pieces)))
    runs = stored[0] if len(parts) == 1 else _in_order(parts, stored)
    if all(isinstance(run.fate, CatmqError) for run in runs) and isinstance(runs[0].fate, CatmqError):
        raise runs[0].fate
    return runs


def _in_order(parts: Sequence[Part], stored: Iterable[Sequence[Run]]) -> list[Run]:
    """The fates of all messages in the order in which they were sent, of the runs of each part."""
    fates: dict[int, Fate] = {}
    for part, runs in zip(parts, stored, strict=True):
        fates.update(zip(part.indexes, (fate for run in runs for fate in run.fates()), strict=True))
    found: list[Run] = []
    for index in sorted(fates):
        if found and _follows(found[-1], fates[index]):
            found[-1] = Run(found[-1].length + 1, found[-1].fate)
        else:
            found.append(Run(1, fates[index]))
    return found


def _follows(run: Run, fate: Fate) -> bool:
    if isinstance(run.fate, Receipt):
        return fate == Receipt(run.fate.queue, run.fate.offset + run.length)
    return isinstance(fate, CatmqError) and fate is run.fate


def _size(messages: Sequence[NewMessage]) -> int:
    return sum(len(message.body) for message in messages)


class _Batch:
    """One request on its way into the tables."""

    def __init__(
        self, topic: TopicInfo, messages: Sequence[NewMessage], batch_id: UUID | None, producer: str
    ) -> None:
        self.topic = topic
        self.messages = messages
        self.producer = producer[:MOST_PRODUCER_CHARS]
        self.deadline = time.monotonic() + DEADLINE_S
        # An id made here was never sent before, so no earlier try of it can have been stored.
        self.fresh = batch_id is None
        self.id = batch_ids.new() if batch_id is None else batch_ids.check(batch_id)
        self.routing = batch_routing.now(topic) if self.fresh else batch_routing.of_batch(topic, self.id)

    def parts(self) -> list[Part]:
        """The batch cut by queue, in the order of each queue's first message.

        Raises OutcomeUnknown while nobody can say by which routing it was cut when it was tried before.
        """
        if not self.fresh and any(message.queue is None for message in self.messages):
            for earlier in batch_routing.before_batch(self.topic, self.id):
                parts = self._cut(earlier, range(len(self.messages)))
                if any(_is_known(part.queues[0], self.part_id(part), part.delayed) for part in parts):
                    self.routing = earlier
                    return parts
        return self._cut(self.routing, range(len(self.messages)))

    def _cut(self, routing: Routing, indexes: Iterable[int]) -> list[Part]:
        parts: dict[tuple[int, bool, bool], Part] = {}
        named: dict[int | None, list[int]] = {}  # indexes of messages without a delay that name their queue
        for index in indexes:
            message = self.messages[index]
            delayed = message.delay_ms is not None or message.deliver_at_ms is not None
            tied = message.queue_strict and not delayed
            if tied and message.queue in named:
                named[message.queue].append(index)
                continue
            home, movable = self._home(routing, index, message)
            if (home, movable, delayed) not in parts:
                queues = self._choices(routing, home) if movable else (home,)
                parts[home, movable, delayed] = Part(queues, movable, delayed, [])
            part = parts[home, movable, delayed]
            part.indexes.append(index)
            if tied and message.queue is not None:
                named[message.queue] = part.indexes
        return list(parts.values())

    def messages_of(self, part: Part) -> Sequence[NewMessage]:
        """The messages of a part, which mostly is the whole batch."""
        if len(part.indexes) == len(self.messages):
            return self.messages
        return [self.messages[index] for index in part.indexes]

    def part_id(self, part: Part) -> bytes:
        whole = self.id if part.of is None else routing_rules.derived_batch_id(self.id, part.of)
        return routing_rules.derived_batch_id(whole, part.number).bytes

    def check_times(self, parts: Sequence[Part]) -> None:
        """Raise Invalid, naming every time of delivery that has long passed or is too far away."""
        wrong = [
            error
            for part in parts
            if part.delayed
            for error in delayed_store.wrong_times(
                messages={index: self.messages[index] for index in part.indexes},
                queues=part.queues,
                batch_id=None if self.fresh else self.part_id(part),
            )
        ]
        if wrong:
            raise Invalid(f"{wrong[0].field}: {wrong[0].message}", errors=wrong)

    def _choices(self, routing: Routing, home: int) -> tuple[int, ...]:
        """The queues a part may go to, its home first.

        `sent_batch` is per node, so a part that may have been sent before stays on its home's node: there a
        repeat finds it, whichever queue it is in. If its home is closed it may go on to the others: a repeat
        comes the same way, and asks every closed queue's node on it.
        """
        others = [queue for queue in batch_routing.anywhere(routing, self.id) if queue != home]
        choices = (home, *(queue for queue in others if queue in self.topic.queues))
        if self.fresh:
            return choices
        info = snapshot.find_queue(home)
        near = tuple(queue for queue in choices if snapshot.find_queue(queue).node_id == info.node_id)
        return near if info.state == "read_write" else tuple(dict.fromkeys((*near, *choices)))

    def _home(self, routing: Routing, index: int, message: NewMessage) -> tuple[int, bool]:
        """(preferred queue, whether another will do) of a message."""
        if message.queue is not None:
            if message.queue not in self.topic.queues and not self._is_new(message.queue):
                mine = ", ".join(map(str, self.topic.queues))
                what = f"{message.queue} is not a queue of topic {self.topic.name}; its queues are {mine}"
                error = FieldError(f"messages[{index}].queue", what)
                raise NotFound(f"{error.field}: {what}", code=Code.QUEUE_NOT_FOUND, errors=[error])
            return message.queue, not message.queue_strict
        if message.key is None:
            return batch_routing.anywhere(routing, self.id)[0], True
        return routing_rules.queue_for_key(message.key, routing.layout), routing.keyed != "strict"

    def _is_new(self, queue: int) -> bool:
        """Return True if the topic just got this queue: clients may hear of it before this process."""
        found, _ = snapshot.find_queues([queue])
        return queue in found and found[queue].topic_id == self.topic.id

    def store(self, part: Part) -> list[Run]:
        """Return what became of the messages of a part."""
        if time.monotonic() > self.deadline:
            what = "Not tried: the other queues of this request used up its time."
            return [Run(len(part.indexes), db_errors.RolledBack(what))]
        if self.topic.read_only and (refused := self._refusal(part)):
            return [Run(len(part.indexes), refused)]
        try:
            elsewhere = self._stored_elsewhere(part)
        except CatmqError as unknown:
            return [Run(len(part.indexes), unknown)]
        write = self._delayed_write(part) if part.delayed else self._write(part)
        error: CatmqError = NoWritableQueue(
            f"No queue of topic {self.topic.name} takes messages now.", retry_after_ms=1000
        )
        for queue in part.queues if elsewhere is None else (elsewhere,):
            try:
                return _runs(part, write.store_once(queue))
            except CatmqError as refusal:
                if not part.movable or refusal.code != Code.QUEUE_NOT_WRITABLE:
                    error = refusal
                if not self._may_go_elsewhere(queue, write.batch_id, refusal):
                    break
        return [Run(len(part.indexes), error)]

    def _stored_elsewhere(self, part: Part) -> int | None:
        """Return a queue of another node that has a part, as its first choice was closed when it was tried.

        That may be open again by now, and its node knows nothing of the earlier try. Raises OutcomeUnknown if
        it is open, and a node that may have the part is away.
        """
        if self.fresh or not part.movable:
            return None
        home = snapshot.find_queue(part.queues[0])
        is_open = home.state == "read_write"
        if is_open and batch_ids.time_ms(self.id) >= home.reopened_ms + batch_routing.AHEAD_MS:
            return None
        nodes = {snapshot.find_queue(queue).node_id: queue for queue in self.topic.queues}
        for queue in (queue for node, queue in nodes.items() if node != home.node_id):
            try:
                if _is_known(queue, self.part_id(part), part.delayed):
                    return queue
            except CatmqError:
                if is_open:
                    raise
        return None

    def _refusal(self, part: Part) -> CatmqError | None:
        """Return why a read-only topic refuses a part; None if an earlier try stored it."""
        try:
            if not self.fresh and any(
                _is_known(queue, self.part_id(part), part.delayed) for queue in part.queues
            ):
                return None
        except CatmqError as unknown:
            return unknown
        what = f"Topic {self.topic.name} is read-only: sends are refused."
        return Conflict(what, code=Code.TOPIC_READ_ONLY)

    def pieces(self, part: Part, runs: Sequence[Run]) -> list[Part]:
        """Return the parts in which a part goes where the topic routes now, if it does.

        That is one that an earlier routing has for queues that are closed now, and that they do not hold.
        """
        closed = (Code.QUEUE_NOT_WRITABLE, Code.NO_WRITABLE_QUEUE)
        fate = runs[0].fate
        if part.of is not None or not isinstance(fate, CatmqError) or fate.code not in closed:
            return []
        routing = batch_routing.now(self.topic)
        if self.routing == routing:
            return []
        return [one._replace(of=part.number) for one in self._cut(routing, part.indexes)]

    def _write(self, part: Part) -> BatchWrite:
        messages, part_id = self.messages_of(part), self.part_id(part)
        batch = NewBatch(part_id, digest(messages), messages, self.producer)
        return BatchWrite(batch, name=self.id, fresh=self.fresh, deadline=self.deadline)

    def _delayed_write(self, part: Part) -> DelayedWrite:
        return DelayedWrite(
            [NewDelayed(one, by_key=self._goes_by_key(one)) for one in self.messages_of(part)],
            batch_id=self.part_id(part),
            producer=self.producer,
            name=str(self.id),
            fresh=self.fresh,
            deadline=self.deadline,
        )

    def _goes_by_key(self, message: NewMessage) -> bool:
        """Return True if its key chose its queue, here or in the client, which names what it chose."""
        if message.key is None or not message.queue_strict:
            return False
        return message.queue in (None, routing_rules.queue_for_key(message.key, self.routing.layout))

    def _may_go_elsewhere(self, queue: int, part_id: bytes, refusal: CatmqError) -> bool:
        if isinstance(refusal, OutcomeUnknown):
            return False
        if refusal.code == Code.QUEUE_NOT_WRITABLE:
            return True  # said only after `sent_batch` was found not to know the batch
        if refusal.code == Code.NODE_FULL:
            return self.fresh  # the other choices of one that may have been sent before are on the same node
        return isinstance(refusal, Unavailable) and (self.fresh or _absent(queue, part_id))


def _runs(part: Part, place: tuple[int, int] | list[DelayedReceipt]) -> list[Run]:
    if isinstance(place, list):
        return [Run(1, receipt) for receipt in place]
    return [Run(len(part.indexes), Receipt(*place))]


def _is_known(queue: int, part_id: bytes, delayed: bool) -> bool:
    """Return True if a part was stored on its queue's node. Raises OutcomeUnknown while that is away."""
    found, _ = snapshot.find_queues([queue])
    if queue not in found:
        return False
    find = delayed_sql.find_delayed_batch if delayed else message_sql.find_batch
    try:
        with node_pools.node_of(queue).reading() as session:
            return find(session, batch_id=part_id) is not None
    except CatmqError as error:
        what = f"It may have been stored in queue {queue}, before the topic's queues changed: {error.detail}"
        raise OutcomeUnknown(what, retry_after_ms=1000) from error


def _absent(queue: int, part_id: bytes) -> bool:
    try:
        with node_pools.node_of(queue).reading() as session:
            return message_sql.find_batch(session, batch_id=part_id) is None
    except CatmqError:
        return False  # nobody can say, so the part stays with its queue
