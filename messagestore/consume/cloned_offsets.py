"""Committed offsets of a group, read as the target of an offset reset of another group."""

from __future__ import annotations

from messagestore import sweeping
from messagestore.pool import node_pools
from messagestore.tables import reader_sql
from messagestore.tables.shares import position_sql
from metadata.actors import Actor
from metadata.groups import ownership
from metadata.membership import broadcast_instances


def committed(*, group: str, topic: str, actor: Actor) -> dict[int, int]:
    """Return the committed offset of a group in each queue of a topic, by queue id.

    Queues without a committed offset are left out. In a share group it is the lowest
    unfinished offset. Needs `consume` or `browse` on the topic. Raises
    NotFound(group_not_found), Invalid, NodeUnavailable.
    """
    offsets: dict[int, int] = {}
    queue_rows = ownership.list_queues_of_topic(group=group, topic=topic, actor=actor)
    group_id = queue_rows[0].group_id
    is_share = broadcast_instances.is_share_group(group_id)
    for node_id, node_rows in sweeping.group_by_node(queue_rows).items():
        with node_pools.node(node_id).reading() as session:
            positions = reader_sql.read_positions(
                session, group_id=group_id, queues=[row.queue for row in node_rows]
            )
            for queue, position in positions.items():
                if position.committed is None:
                    continue
                offsets[queue] = position.committed
                if not is_share:
                    continue
                # A loop copies the floor to the reader row (shares/upkeep.py), so
                # `committed` may be older.
                floor = position_sql.read_floor(session, group_id=group_id, queue=queue)
                # A share position of another epoch counts for nothing: leasing starts again
                # at `committed`.
                if floor is not None and floor.epoch == position.epoch:
                    offsets[queue] = max(position.committed, floor.offset)
    return offsets
