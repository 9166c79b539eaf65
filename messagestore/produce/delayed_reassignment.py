"""Delayed messages whose queue goes: those of a retired queue get another one of their topic,
those of a deleted topic go with its tables."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from messagestore.pool.node import Node
from messagestore.produce import delayed_store
from messagestore.tables import delayed_sql
from metadata.cache import snapshot
from metadata.errors import NoWritableQueue

CHUNK = 2_000  # rows in one transaction


def drop(queue: int) -> int:
    """Delete what waits for a queue, on every node; how many. Raises NodeUnavailable."""
    delete = partial(delayed_sql.delete_queue_delayed, queue=queue, most=CHUNK)
    return sum(node.in_chunks(delete, chunk=CHUNK) for node in _nodes())


def reassign(queue: int, *, topic_id: int) -> int:
    """Give what waits for a queue to another open one of its topic, on every node; how many.

    One on the same node is preferred: to others a message is handed over when it is due. Where a key decides,
    that is decided then, too. Raises NodeUnavailable, and NoWritableQueue if there is none.
    """
    done = 0
    for node in _nodes():
        with node.reading() as session:
            waits = delayed_sql.count_delayed(session, queues=[queue], most=1)
        if waits:
            move = partial(delayed_sql.retarget_queue_delayed, queue=queue, most=CHUNK)
            target = _home(queue, topic_id, node)
            done += node.in_chunks(partial(move, target=target), chunk=CHUNK)
    return done


def _nodes() -> Iterator[Node]:
    return map(delayed_store.prepared, sorted(snapshot.current().nodes))


def _home(queue: int, topic_id: int, node: Node) -> int:
    known = snapshot.current().queues.values()
    others = [one for one in known if one.topic_id == topic_id and one.id != queue]
    taking = [one for one in others if one.state == "read_write"]
    if not taking:
        raise NoWritableQueue(f"Topic {topic_id} has no open queue for delayed messages of queue {queue}.")
    return min(taking, key=lambda one: (one.node_id != node.info.id, one.id)).id
