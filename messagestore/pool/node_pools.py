"""The nodes that this process uses, as the snapshot describes them.

A node whose description changed (new epoch, address or password) gets a new pool.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from messagestore.pool.node import Node
from metadata.cache import snapshot
from metadata.grouping import grouped

_nodes: dict[int, Node] = {}
# Nodes that were replaced or deleted, while sessions of their pools are still in use.
_outdated: list[Node] = []
_nodes_guard = threading.Lock()


def node(node_id: int) -> Node:
    """Return the node as the snapshot describes it now. Raises NotFound (node_not_found)."""
    info = snapshot.node_by_id(node_id)
    # The usual case, without the lock.
    current = _nodes.get(node_id)
    if current is not None and current.info == info:
        return current
    with _nodes_guard:
        replaced = _nodes.get(node_id)
        if replaced is None or replaced.info != info:
            _nodes[node_id] = Node(info)
            if replaced is not None:
                replaced.discard()
                if replaced.info.writer != info.writer:
                    replaced.pool.leave_server()
                _outdated.append(replaced)
        return _nodes[node_id]


def node_of(queue: int) -> Node:
    """Return the node that holds a queue. Raises NotFound (queue_not_found)."""
    return node(snapshot.find_queue(queue).node_id)


def group_by_node(queues: Iterable[int]) -> list[tuple[Node, list[int]]]:
    """Return the nodes that hold the queues, each with its queues.

    Raises NotFound (queue_not_found).
    """
    return group_by_node_id({queue: snapshot.find_queue(queue).node_id for queue in queues})


def group_by_node_id(node_ids: Mapping[int, int]) -> list[tuple[Node, list[int]]]:
    """Return the nodes of queues, each with its queues; `node_ids` maps queue to node."""
    queues_by_node = grouped((node_id, queue) for queue, node_id in node_ids.items())
    return [(node(node_id), queues) for node_id, queues in queues_by_node.items()]


def watch(node_id: int) -> None:
    """Check the health of a node: open its circuit if it is silent, send due probes.

    Does nothing if this process does not use the node. A loop of every worker calls it.
    """
    node_in_use = _nodes.get(node_id)
    if node_in_use is not None:
        node_in_use.watch()
    # Calls that still wait for a former writer.
    for outdated in list(_outdated):
        if outdated.info.id == node_id:
            outdated.pool.cut_silent(reads=False)


def used_node_ids() -> list[int]:
    """Return the ids of the nodes that this process uses."""
    return list(_nodes)


def unreachable_nodes() -> list[str]:
    """Return the sorted names of nodes whose circuit is open in this process."""
    return sorted(node.info.name for node in list(_nodes.values()) if node.circuit.is_open)


def drop_outdated() -> bool:
    """Replace nodes whose description changed, and drop deleted nodes.

    Return True if no session of an outdated node is in use in this process any more: then
    nothing here uses the description of an older snapshot.
    """
    current_nodes = snapshot.current().nodes
    for node_id in list(_nodes):
        # `node` replaces a node whose description changed.
        if node_id in current_nodes:
            node(node_id)
    with _nodes_guard:
        deleted_nodes = [
            _nodes.pop(node_id) for node_id in list(_nodes) if node_id not in current_nodes
        ]
        for deleted_node in deleted_nodes:
            deleted_node.discard()
        _outdated.extend(deleted_nodes)
        _outdated[:] = [node for node in _outdated if node.pool.busy]
        return not _outdated


def evict_all() -> None:
    """Close all idle connections and forget the nodes, when the process stops."""
    with _nodes_guard:
        nodes = list(_nodes.values())
        _nodes.clear()
    for node in nodes:
        node.discard()
