"""Committed offsets of a group, read as the target of an offset reset of another group."""

from __future__ import annotations

from collections.abc import Sequence

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.pool import node_pools
from messagestore.tables import reader_sql
from messagestore.tables.shapes import Position
from messagestore.tables.shares import position_sql
from metadata.actors import Actor
from metadata.groups import ownership
from metadata.groups.ownership import QueueOwner
from metadata.membership import broadcast_instances


def committed(*, group: str, topic: str, actor: Actor) -> dict[int, int]:
    """Return the committed offset of a group in each queue of a topic, by queue id.

    Queues without a committed offset are left out. In a share group it is the lowest
    unfinished offset. Needs `consume` or `browse` on the topic. Raises
    NotFound(group_not_found), Invalid, NodeUnavailable.
    """
    offsets: dict[int, int] = {}
    queue_rows = ownership.list_queues_of_topic(group=group, topic=topic, actor=actor)
    is_share = broadcast_instances.is_share_group(queue_rows[0].group_id)
    for node_id, node_rows in sweeping.group_by_node(queue_rows).items():
        with node_pools.node(node_id).reading() as session:
            offsets |= _on_node(session, node_rows, is_share=is_share)
    return offsets


def _on_node(
    session: Session, rows: Sequence[QueueOwner], *, is_share: bool
) -> dict[int, int]:
    group_id = rows[0].group_id
    positions = reader_sql.read_positions(
        session, group_id=group_id, queues=[row.queue for row in rows]
    )
    offsets = {
        queue: p.committed for queue, p in positions.items() if p.committed is not None
    }
    if is_share:
        return {
            queue: _unfinished(session, group_id, positions[queue], committed)
            for queue, committed in offsets.items()
        }
    return offsets


def _unfinished(session: Session, group_id: int, position: Position, committed: int) -> int:
    """Return the lowest unfinished offset of a share group in a queue."""
    # A loop copies this offset to the reader row (shares/upkeep.py), so `committed` may be
    # older.
    floor = position_sql.read_floor(session, group_id=group_id, queue=position.queue)
    # A share position of another epoch counts for nothing: leasing starts again at
    # `committed`.
    if floor is None or floor.epoch != position.epoch:
        return committed
    return max(committed, floor.offset)
