"""Nodes that do not answer, so that pages can name the missing data."""

from __future__ import annotations

from collections.abc import Iterable

from messagestore.nodes import registry
from messagestore.pool import node_pools
from messagestore.topology.drains import QueueDrain
from messagestore.topology.topics import QueueBounds
from metadata.cache import snapshot
from metadata.rules.nodes import NodeState
from metadata.rules.topics.states import QueueState


def silent_nodes() -> list[str]:
    """Return the names of nodes that did not answer when this process last asked. Offline
    nodes are left out.
    """
    latencies = registry.latencies()
    silent = {
        *node_pools.unreachable_nodes(),
        *(name for name, seconds in latencies.items() if seconds is None),
    }
    return sorted(silent - set(offline_nodes()))


def names_of_nodes(queues: Iterable[int]) -> str:
    """Return the names of the nodes of some queues, separated by commas."""
    cluster = snapshot.current()
    node_ids = {cluster.queues[q].node_id for q in queues if q in cluster.queues}
    return ", ".join(sorted(cluster.nodes[node_id].name for node_id in node_ids))


def silent_nodes_of_topic(queues: Iterable[QueueBounds | QueueDrain]) -> str:
    """Return the names of the nodes that did not report a topic's queues, separated by
    commas.
    """
    return names_of_nodes(
        state.queue.queue
        for state in queues
        if state.head is None and state.queue.state != QueueState.RETIRED
    )


def offline_nodes() -> list[str]:
    """Return the names of the nodes that were taken offline."""
    return sorted(
        node.name
        for node in snapshot.current().nodes.values()
        if node.state == NodeState.OFFLINE
    )
