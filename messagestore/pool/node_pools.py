"""Nodes that this process uses, as the snapshot describes them.

A changed node (new epoch, address or password) gets a new pool.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from messagestore.pool.node import Node
from metadata.cache import snapshot
from metadata.grouping import grouped

_nodes: dict[int, Node] = {}
_replaced: list[Node] = []  # with sessions of theirs still in use
_nodes_guard = threading.Lock()


def node(node_id: int) -> Node:
    """The node as the snapshot describes it now. Raises NotFound (node_not_found)."""
    info = snapshot.node_by_id(node_id)
    known = _nodes.get(node_id)
    if known is not None and known.info == info:
        return known
    with _nodes_guard:
        replaced = _nodes.get(node_id)
        if replaced is None or replaced.info != info:
            _nodes[node_id] = Node(info)
            if replaced is not None:
                replaced.discard()
                _replaced.append(replaced)
        return _nodes[node_id]


def node_of(queue: int) -> Node:
    """The node that holds a queue. Raises NotFound (queue_not_found)."""
    return node(snapshot.find_queue(queue).node_id)


def group_by_node(queues: Iterable[int]) -> list[tuple[Node, list[int]]]:
    """The nodes that hold some queues, each with its own. Raises NotFound
    (queue_not_found).
    """
    return group_by_node_id({queue: snapshot.find_queue(queue).node_id for queue in queues})


def group_by_node_id(places: Mapping[int, int]) -> list[tuple[Node, list[int]]]:
    """The same for queues whose nodes are known: {queue: node}."""
    nodes = grouped((node_id, queue) for queue, node_id in places.items())
    return [(node(node_id), mine) for node_id, mine in nodes.items()]


def watch(node_id: int) -> None:
    """Look after a node that this process uses; a loop of every worker. Requests need not
    probe then.
    """
    used = _nodes.get(node_id)
    if used is not None:
        used.watch()


def used_node_ids() -> list[int]:
    return list(_nodes)


def unreachable_nodes() -> list[str]:
    """The names of the nodes whose circuit is open in this process, in order."""
    return sorted(
        known.info.name for known in list(_nodes.values()) if known.circuit.is_open
    )


def is_current() -> bool:
    """Return True if nobody in this process uses a node as an older snapshot described it.
    Nodes that are gone are evicted on the way."""
    known = snapshot.current().nodes
    for node_id in list(_nodes):
        if node_id in known:
            node(node_id)
    with _nodes_guard:
        gone = [_nodes.pop(node_id) for node_id in list(_nodes) if node_id not in known]
        for one in gone:
            one.discard()
        _replaced.extend(gone)
        _replaced[:] = [one for one in _replaced if one.pool.busy]
        return not _replaced


def evict_all() -> None:
    """Close every idle connection of this process and evict its nodes, when it stops."""
    with _nodes_guard:
        nodes = list(_nodes.values())
        _nodes.clear()
    for known in nodes:
        known.discard()
