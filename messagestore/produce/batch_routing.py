"""The way of messages that name no queue: the same wherever and whenever the batch is repeated.

It follows from the batch id and how the topic routes. That changes when the topic is expanded or shrunk, when
a queue is retired, or when `keyed` is set, and each change leaves the former routing behind. A batch goes by
the one that was in force at the time in its id: a repeat goes by that of its first try, through any broker.

That time is the client's clock. One that is ahead may have given an id of after a change to a batch that was
tried before it; so for an hour of such times the parts of the former routings are looked for, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from messagestore.engine import batch_ids
from metadata.cache import snapshot
from metadata.cache.snapshot_types import Routing, TopicInfo
from metadata.rules.topics import routing_rules

AHEAD_MS = 3_600_000  # so far may the clock of a client that names no queue be ahead
_FOR_EVER = 1 << 62


def now(topic: TopicInfo) -> Routing:
    """Return how a topic routes from its last change on.

    The closed queues among those that are read count, so that a repeat of a send that was stored just before
    its queue was closed comes by there, and is found.
    """
    known = snapshot.current().queues
    states = ("read_write", "read_only")
    live = tuple(one for one in topic.queues if one in known and known[one].state in states)
    return Routing(topic.layout, topic.keyed, live or topic.queues, _FOR_EVER)


def of_batch(topic: TopicInfo, batch_id: UUID) -> Routing:
    """Return what was in force at the time in a batch id."""
    at_ms = batch_ids.time_ms(batch_id)
    return next((one for one in _earlier(topic) if at_ms < one.until_ms), None) or now(topic)


def before_batch(topic: TopicInfo, batch_id: UUID) -> Iterator[Routing]:
    """Return what was in force so shortly before that a client's clock may run ahead, the last first."""
    at_ms = batch_ids.time_ms(batch_id)
    for one in reversed(_earlier(topic)):
        if one.until_ms <= at_ms < one.until_ms + AHEAD_MS:
            yield one


def _earlier(topic: TopicInfo) -> list[Routing]:
    """Those of which every queue is left. One is removed when nothing that was sent to it is remembered."""
    known = snapshot.current().queues
    return [one for one in topic.earlier if known.keys() >= set(one.queues)]


def anywhere(routing: Routing, batch_id: UUID) -> list[int]:
    """The queues for messages that may go to any, the best first."""
    return routing_rules.candidates(batch_id, routing.queues)
