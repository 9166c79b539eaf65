"""Routing of messages that name no queue. Every broker routes a repeat like the first try.

The queue follows from the batch id and the topic's routing. The routing changes when the
topic is expanded or shrunk, when a queue is retired, or when `keyed` is set. Metadata keeps
each former routing with the time of its end. A batch uses the routing that was in force at
the time in its id, so a repeat finds the record of its first try even if the topic has
changed since.

The time in the id is the client's clock. If that clock runs ahead, a batch that was tried
before a change carries a time after it. So for an hour after a change, its former routing
is checked as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

from messagestore.engine import batch_ids
from metadata.cache.snapshot_types import QueueInfo, Routing, TopicInfo
from metadata.rules.topics import routing_rules
from metadata.rules.topics.states import READABLE_STATES

AHEAD_MS = 3_600_000  # how far the clock of a client that names no queue may run ahead
_FOR_EVER = 1 << 62


def current_routing(topic: TopicInfo, queues: Mapping[int, QueueInfo]) -> Routing:
    """Return the topic's current routing, which includes its read-only queues."""
    states = READABLE_STATES
    # Read-only queues count: a send that was stored just before its queue was closed is
    # repeated through the same queue, so the repeat is recognized.
    live = tuple(q for q in topic.queues if q in queues and queues[q].state in states)
    return Routing(topic.layout, topic.keyed, live or topic.queues, _FOR_EVER)


def routing_of_batch(
    topic: TopicInfo, queues: Mapping[int, QueueInfo], *, batch_id: UUID
) -> Routing:
    """Return the routing that was in force at the time inside the batch id."""
    at_ms = batch_ids.time_ms(batch_id)
    for routing in _earlier(topic, queues):
        if at_ms < routing.until_ms:
            return routing
    return current_routing(topic, queues)


def routings_before_batch(
    topic: TopicInfo, queues: Mapping[int, QueueInfo], *, batch_id: UUID
) -> Iterator[Routing]:
    """Yield the routings that ended up to AHEAD_MS before the batch id's time, latest first.

    A batch of a client whose clock runs ahead may have been tried under any of them.
    """
    at_ms = batch_ids.time_ms(batch_id)
    for routing in reversed(_earlier(topic, queues)):
        if routing.until_ms <= at_ms < routing.until_ms + AHEAD_MS:
            yield routing


def _earlier(topic: TopicInfo, queues: Mapping[int, QueueInfo]) -> list[Routing]:
    """Return the topic's former routings, oldest first, but none that names a removed queue."""
    # A queue is removed only after the batch records of its sends have expired: a routing
    # that names it can no longer lead to the record of an earlier try.
    return [routing for routing in topic.earlier if queues.keys() >= set(routing.queues)]


def order_queues(routing: Routing, batch_id: UUID) -> tuple[int, ...]:
    """Return the queues of a routing in the batch's order of preference. The first is the queue
    of its messages without a key.
    """
    return routing_rules.order_queues(batch_id, routing.queues)
