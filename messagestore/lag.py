"""Lag: how far behind a group is, per queue, in messages and in time, read from the nodes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from messagestore import connections, tables
from messagestore.sessions import Session
from messagestore.tables import Position
from metadata import ownership
from metadata.actors import Actor
from metadata.errors import NodeUnavailable
from metadata.ownership import QueueOwner

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueLag:
    """A queue as a group reads it; what a node that is away would tell is None.

    `lag` = head - committed, in messages; `lag_ms` = the node's time now - when the first unread message
    was stored, 0 when there is none. `owner` is the member's name.
    """

    topic: str
    queue: int
    number: int
    owner: str | None
    epoch: int
    committed: int | None = None
    head: int | None = None
    low: int | None = None
    lag: int | None = None
    lag_ms: int | None = None


def group_offsets(*, group: str, actor: Actor) -> list[QueueLag]:
    """Every queue the group reads, by topic and number. Needs any right on the group; raises NotFound."""
    owned = ownership.queues(group=group, actor=actor)
    nodes: dict[int, list[QueueOwner]] = {}
    for row in owned:
        nodes.setdefault(row.node_id, []).append(row)
    lags: dict[int, QueueLag] = {}
    for node_id, rows in nodes.items():
        lags |= _of_node(node_id, rows)
    return [lags[row.queue] for row in owned]


def _of_node(node_id: int, rows: Sequence[QueueOwner]) -> Mapping[int, QueueLag]:
    try:
        with connections.node(node_id).reading() as session:
            positions = tables.read_positions(
                session, group_id=rows[0].group_id, queues=[row.queue for row in rows]
            )
            now = tables.now_ms(session)
            return {row.queue: _lag(session, row, positions.get(row.queue), now) for row in rows}
    except NodeUnavailable as error:
        log.warning("Lag on node %d is not known: %s", node_id, error.detail)
        return {row.queue: QueueLag(row.topic, row.queue, row.number, row.owner, row.epoch) for row in rows}


def _lag(session: Session, row: QueueOwner, position: Position | None, now: int) -> QueueLag:
    if position is None or position.committed is None:
        return QueueLag(row.topic, row.queue, row.number, row.owner, row.epoch)
    unread = max(position.committed, position.low)
    stored_at = (
        tables.stored_at_ms(session, queue=row.queue, offset=unread) if unread < position.head else None
    )
    return QueueLag(
        topic=row.topic,
        queue=row.queue,
        number=row.number,
        owner=row.owner,
        epoch=row.epoch,
        committed=position.committed,
        head=position.head,
        low=position.low,
        lag=position.head - position.committed,
        lag_ms=max(0, now - stored_at) if stored_at is not None else 0,
    )
