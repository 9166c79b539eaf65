"""Delayed messages of removed queues.

When a queue is retired, its delayed messages are reassigned to another queue of the topic.
When a topic is deleted, they are deleted with its tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from messagestore.pool.node import Node
from messagestore.produce import delayed_store
from messagestore.tables import delayed_sql
from metadata.cache import snapshot
from metadata.errors import NoWritableQueue
from metadata.rules.nodes import NodeState

CHUNK = 2_000  # rows in a transaction


def drop(queue: int) -> int:
    """Delete the delayed messages of a queue on every node, and return their number.

    Raises NodeUnavailable.
    """
    delete = partial(delayed_sql.delete_queue_delayed, queue=queue, most=CHUNK)
    return sum(node.in_chunks(delete, chunk=CHUNK) for node in _nodes())


def reassign(queue: int, *, topic_id: int) -> int:
    """Assign the delayed messages of a queue to another open queue of its topic, on every
    node.

    Returns the number of messages. Messages that are routed by key get their final queue
    when they are due. Raises NodeUnavailable, and NoWritableQueue if the topic has no other
    open queue.
    """
    moved = 0
    for node in _nodes():
        with node.reading() as session:
            has_rows = delayed_sql.count_delayed(session, queues=[queue], most=1)
        if has_rows:
            move = partial(delayed_sql.retarget_queue_delayed, queue=queue, most=CHUNK)
            open_queues = [
                info
                for info in snapshot.current().queues.values()
                if info.topic_id == topic_id
                and info.id != queue
                and info.state == NodeState.READ_WRITE
            ]
            if not open_queues:
                raise NoWritableQueue(
                    f"Topic {topic_id} has no open queue for delayed messages of queue "
                    f"{queue}."
                )
            # A queue on the same node is preferred: a message for a queue of another node
            # must be copied to that node when it is due.
            own_node_id = node.info.id
            target = min((info.node_id != own_node_id, info.id) for info in open_queues)[1]
            moved += node.in_chunks(partial(move, target=target), chunk=CHUNK)
    return moved


def _nodes() -> Iterator[Node]:
    return map(delayed_store.prepared, sorted(snapshot.current().nodes))
