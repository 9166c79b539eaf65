"""Which queues have an index on the keys of their messages, as their tables say.

The setting `key_index` of a topic is a wish (see topology/key_indexes.py). Only the table
itself tells whether the index exists: it is being built, or was dropped, or the node is a
restored one. The answer is kept for STATES_S. A statement that forces an index which was
dropped meanwhile fails with `db_errors.NoIndex`, so an old answer is never wrong for long.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from messagestore.pool import node_pools
from messagestore.tables import queue_sql

STATES_S = 10.0


class _IndexedQueues(NamedTuple):
    queues: frozenset[int]
    valid_until: float


_guard = threading.Lock()
_by_node: dict[int, _IndexedQueues] = {}


def indexed_queues(node_id: int) -> frozenset[int]:
    """Return the queues of a node that have a key index. Raises NodeUnavailable."""
    with _guard:
        known = _by_node.get(node_id)
    if known is None or time.monotonic() > known.valid_until:
        with node_pools.node(node_id).reading() as session:
            queues = frozenset(queue_sql.list_key_indexes(session))
        known = _IndexedQueues(queues, time.monotonic() + STATES_S)
        with _guard:
            _by_node[node_id] = known
    return known.queues


def forget(node_id: int) -> None:
    """Let the next call ask the node again: an index was built or dropped."""
    with _guard:
        _by_node.pop(node_id, None)
