"""Nodes that tell nothing now, so that pages can say what is missing on them."""

from __future__ import annotations

from collections.abc import Iterable

from messagestore.nodes import registry
from messagestore.pool import node_pools
from messagestore.topology.drains import QueueDrain
from messagestore.topology.topics import QueueState
from metadata.cache import snapshot


def silent() -> list[str]:
    """The nodes that ought to answer, but did not when this process last asked them."""
    asked = registry.latencies()
    names = {*node_pools.away(), *(name for name, seconds in asked.items() if seconds is None)}
    return sorted(names - set(offline()))


def of(queues: Iterable[int]) -> str:
    """The names of the nodes of some queues, which did not answer."""
    known = snapshot.current()
    found = {known.queues[one].node_id for one in queues if one in known.queues}
    return ", ".join(sorted(known.nodes[one].name for one in found))


def of_topic(queues: Iterable[QueueState | QueueDrain]) -> str:
    """The names of the nodes that did not tell of a topic's queues."""
    return of(one.queue.queue for one in queues if one.head is None and one.queue.state != "retired")


def offline(*, topic: str | None = None) -> list[str]:
    """The nodes that were taken offline; only those with queues of a topic, if one is named.

    Raises NotFound(topic_not_found).
    """
    known = snapshot.current()
    found = [one for one in known.nodes.values() if one.state == "offline"]
    if topic is not None:
        topic_id = snapshot.find_topic(topic).id
        used = {one.node_id for one in known.queues.values() if one.topic_id == topic_id}
        found = [one for one in found if one.id in used]
    return sorted(one.name for one in found)
