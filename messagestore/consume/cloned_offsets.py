"""Committed offsets of one group, as the target to which those of another are reset."""

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
from metadata.membership import instances


def committed(*, group: str, topic: str, actor: Actor) -> dict[int, int]:
    """Queue → the offset that a group has committed there now; queues in which it has none are left out.

    A share group's is its lowest unfinished offset. Needs `consume` or `browse` on the topic. Raises
    NotFound(group_not_found), Invalid, NodeUnavailable.
    """
    found: dict[int, int] = {}
    rows = ownership.of_topic(group=group, topic=topic, actor=actor)
    shares = instances.is_share(rows[0].group_id)
    for node_id, mine in sweeping.by_node(rows).items():
        with node_pools.node(node_id).reading() as session:
            found |= _on_node(session, mine, shares=shares)
    return found


def _on_node(session: Session, rows: Sequence[QueueOwner], *, shares: bool) -> dict[int, int]:
    group_id = rows[0].group_id
    read = reader_sql.read_positions(session, group_id=group_id, queues=[row.queue for row in rows])
    found = {queue: one.committed for queue, one in read.items() if one.committed is not None}
    if shares:
        return {queue: _unfinished(session, group_id, read[queue], at) for queue, at in found.items()}
    return found


def _unfinished(session: Session, group_id: int, position: Position, committed: int) -> int:
    """The lowest unfinished offset: the loop that writes it as committed may be behind."""
    floor = position_sql.read_floor(session, group_id=group_id, queue=position.queue)
    if floor is None or floor.epoch != position.epoch:
        return committed
    return max(committed, floor.offset)
