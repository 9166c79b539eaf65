"""Nodes that tell nothing now, so that pages can say what is missing on them."""

from __future__ import annotations

from collections.abc import Iterable

from messagestore.nodes import registry
from messagestore.pool import node_pools
from messagestore.topology.drains import QueueDrain
from messagestore.topology.topics import QueueState
from metadata.cache import snapshot


def silent_nodes() -> list[str]:
    """The nodes that ought to answer, but did not when this process last asked them."""
    asked = registry.latencies()
    names = {
        *node_pools.away(),
        *(name for name, seconds in asked.items() if seconds is None),
    }
    return sorted(names - set(offline_nodes()))


def names_of_nodes(queues: Iterable[int]) -> str:
    """The names of the nodes of some queues, which did not answer."""
    known = snapshot.current()
    found = {known.queues[one].node_id for one in queues if one in known.queues}
    return ", ".join(sorted(known.nodes[one].name for one in found))


def silent_nodes_of_topic(queues: Iterable[QueueState | QueueDrain]) -> str:
    """The names of the nodes that did not tell of a topic's queues."""
    return names_of_nodes(
        one.queue.queue
        for one in queues
        if one.head is None and one.queue.state != "retired"
    )


def offline_nodes() -> list[str]:
    """The nodes that were taken offline."""
    return sorted(
        one.name for one in snapshot.current().nodes.values() if one.state == "offline"
    )
