"""Positions on a server that may be behind.

The writer of a node on a cluster moves, and the processes of all brokers follow it one after the
other. Until a process does, its sessions are on a former writer, which may still answer: a member
of a MySQL group that leaves it, a member of a Galera cluster that applies later what the writer
commits. Its log end offsets and epochs are lower than those that consumers have from the
others. An answer that an offset is above the log end would send such a consumer back to the
beginning of the queue.

So what can only be true if the server is behind is asked again, on a new session: that goes to
the writer and waits until it has caught up.
"""

from __future__ import annotations

from collections.abc import Sequence

from messagestore.pool.node import Node
from messagestore.tables import reader_sql
from messagestore.tables.shapes import Position
from metadata.db.consumer_ids import ConsumerId


def is_low(position: Position | None, *, epoch: int, offset: int) -> bool:
    """Return True if a server has less than a consumer with this epoch and offset has seen.

    On a node that is a single server (`Node.is_movable` is False), that is the consumer's
    mistake, or the node has lost messages.
    """
    if position is None or position.epoch is None or position.epoch < epoch:
        return True
    return position.epoch == epoch and position.head < offset


def ask_writer(
    node: Node, *, consumer: ConsumerId, queues: Sequence[int]
) -> dict[int, Position]:
    """Return the positions on the server that is written to now. Raises NodeUnavailable."""
    with node.at_writer() as session:
        return reader_sql.read_positions(
            session,
            group_id=consumer.group_id,
            instance=consumer.instance,
            queues=queues,
        )
