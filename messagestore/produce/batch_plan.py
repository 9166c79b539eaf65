"""The plan of a send: the parts into which a batch is cut, one for each queue.

Nothing here reads a node or changes anything. The plan follows from the request and from the
metadata that it was given, so a repeat that reaches another broker is cut in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from messagestore.engine.messages import NewMessage
from messagestore.produce import batch_routing
from metadata.cache.snapshot_types import QueueInfo, Routing, TopicInfo
from metadata.errors import Code, FieldError, NotFound
from metadata.rules.topics import routing_rules
from metadata.rules.topics.states import Keyed, QueueState


class Batch(NamedTuple):
    """The messages of one send request, and the metadata by which they are cut into parts.

    `has_new_id`: the broker generated the id, so no earlier try can have stored the batch.
    `queues`: all queues of the metadata snapshot, by id.
    """

    id: UUID
    has_new_id: bool
    messages: Sequence[NewMessage]
    topic: TopicInfo
    queues: Mapping[int, QueueInfo]

    def messages_of(self, part: Part) -> Sequence[NewMessage]:
        """Return the messages of a part; a part that is the whole batch is not copied."""
        if len(part.indexes) == len(self.messages):
            return self.messages
        return [self.messages[index] for index in part.indexes]

    def queue(self, queue: int) -> QueueInfo:
        """Return a queue of the snapshot. Raises NotFound (queue_not_found)."""
        if queue not in self.queues:
            raise NotFound(f"Queue {queue} does not exist.", code=Code.QUEUE_NOT_FOUND)
        return self.queues[queue]


class Part(NamedTuple):
    """The messages of a batch that are stored in one queue by one transaction.

    `queues`: the queues to try, in order of preference. `movable`: False if only the first
    will do. `delayed`: the messages wait in the table of delayed messages first. `indexes`:
    places of the messages in the request. `piece_of`: number of the part that was refused and
    cut again, for a piece of it.
    """

    queues: tuple[int, ...]
    movable: bool
    delayed: bool
    indexes: list[int]
    piece_of: int | None = None

    @property
    def number(self) -> int:
        """Number of the part, unique in its batch whichever queue stores the part."""
        # Bit 62: delayed. Bits 1 to 61: the preferred queue. Bit 0: movable. Two parts of a batch
        # differ in one of them, because `cut` groups the messages by all three. Never change
        # this: part ids depend on the number, and a repeat must have the id of the first try.
        return (self.delayed << 62) + 2 * self.queues[0] + self.movable


def part_id(batch: Batch, part: Part) -> bytes:
    """Return the 16 bytes under which `sent_batch` records the part.

    The id depends on the batch id and the part's number, so a repeat of the batch finds the
    record.
    """
    parent_id = (
        batch.id
        if part.piece_of is None
        else routing_rules.derived_batch_id(batch.id, part.piece_of)
    )
    return routing_rules.derived_batch_id(parent_id, part.number).bytes


def cut(
    batch: Batch, routing: Routing, *, indexes: Iterable[int] | None = None
) -> list[Part]:
    """Cut the messages at `indexes` (None: all) into parts, in the order of their first message.

    Messages form one part if they have the same preferred queue, and agree on whether another
    queue will do and on whether they are delayed. Raises NotFound (queue_not_found) if a
    message names a queue that the topic does not have.
    """
    parts: dict[tuple[int, bool, bool], Part] = {}
    # Indexes of the messages without a delay that insist on the queue they name. If many
    # messages name the same queue, this saves the look-up of their part.
    indexes_by_queue: dict[int | None, list[int]] = {}
    for index in range(len(batch.messages)) if indexes is None else indexes:
        message = batch.messages[index]
        delayed = message.delay_ms is not None or message.deliver_at_ms is not None
        stays_on_queue = message.queue_strict and not delayed
        if stays_on_queue and message.queue in indexes_by_queue:
            indexes_by_queue[message.queue].append(index)
            continue
        queue, movable = _preferred_queue(batch, routing, index)
        part = parts.get((queue, movable, delayed))
        if part is None:
            queues = _candidate_queues(batch, routing, queue) if movable else (queue,)
            part = parts[queue, movable, delayed] = Part(queues, movable, delayed, [])
        part.indexes.append(index)
        if stays_on_queue and message.queue is not None:
            indexes_by_queue[message.queue] = part.indexes
    return list(parts.values())


def cut_again(batch: Batch, part: Part, *, routing: Routing) -> list[Part]:
    """Cut the messages of a refused part by the current routing. Return [] if that changes
    nothing.

    `routing` is the old one, by which the batch was cut. A piece is not cut a second time.
    """
    current = batch_routing.current_routing(batch.topic, batch.queues)
    if part.piece_of is not None or routing == current:
        return []
    return [
        piece._replace(piece_of=part.number)
        for piece in cut(batch, current, indexes=part.indexes)
    ]


def is_routed_by_key(message: NewMessage, routing: Routing) -> bool:
    """Return True if the key chose the queue of a message, here or in the client.

    A client that routes by key names the queue that it chose.
    """
    # With `queue_strict` False, the sender itself named a queue that it prefers: the key did not
    # choose it. Without a named queue, `queue_strict` is always True.
    if message.key is None or not message.queue_strict:
        return False
    return message.queue in (
        None,
        routing_rules.queue_for_key(message.key, routing.layout),
    )


def _preferred_queue(batch: Batch, routing: Routing, index: int) -> tuple[int, bool]:
    """Return the queue that a message goes to first, and whether another queue will do."""
    message, topic = batch.messages[index], batch.topic
    if message.queue is not None:
        # `topic` may be older than `queues`, which then has a queue that was just added.
        added = batch.queues.get(message.queue)
        if message.queue in topic.queues or (added and added.topic_id == topic.id):
            return message.queue, not message.queue_strict
        problem = (
            f"{message.queue} is not a queue of topic {topic.name}; its queues are "
            f"{', '.join(map(str, topic.queues))}"
        )
        error = FieldError(f"messages[{index}].queue", problem)
        raise NotFound(
            f"{error.field}: {problem}", code=Code.QUEUE_NOT_FOUND, errors=[error]
        )
    if message.key is None:
        return batch_routing.order_queues(routing, batch.id)[0], True
    queue = routing_rules.queue_for_key(message.key, routing.layout)
    return queue, routing.keyed != Keyed.STRICT


def _candidate_queues(batch: Batch, routing: Routing, preferred: int) -> tuple[int, ...]:
    """Return the queues that may store a movable part, its preferred queue first."""
    others = batch_routing.order_queues(routing, batch.id)
    candidates = (
        preferred,
        *(queue for queue in others if queue != preferred and queue in batch.topic.queues),
    )
    if batch.has_new_id:
        return candidates
    # The records of sent batches are per node. So a part that may be repeated stays on the node
    # of its preferred queue: whichever of the node's queues stores it, a repeat finds the record.
    # It may leave the node only if its preferred queue is closed. A repeat then tries the same
    # queues in the same order, and looks for the record on each node on its way.
    home = batch.queue(preferred)
    on_home_node = tuple(
        queue for queue in candidates if batch.queue(queue).node_id == home.node_id
    )
    if home.state == QueueState.READ_WRITE:
        return on_home_node
    return tuple(dict.fromkeys((*on_home_node, *candidates)))
