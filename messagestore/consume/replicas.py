"""Pulls from a node's replica while the node itself is away.

A replica is behind by an unknown bit, and that decides what is honest:

* A position at or above its head is empty: the messages may only not have arrived.
* Nothing is acquired or committed there; consumers go on from where they are by their own count.
* Its reader row may name an owner who has lost the queue since. So the owner is asked of metadata, which
  grants every acquire before it can happen; the row only must not say more: a later epoch, or another owner
  of the same one. Without metadata nothing is served.
* A gap or `low` there is as true as on the node. A hole that they do not explain is the replica's disorder,
  so the queue is unavailable.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from messagestore.consume import delivery_delay
from messagestore.consume.budget import OVERSHOOT, Budget
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.engine.messages import ROW_OFFSET
from messagestore.engine.mysql_session import Session
from messagestore.heads.gap_check import dense, explain
from messagestore.pool import node_pools
from messagestore.tables import message_sql, queue_sql, reader_sql
from messagestore.tables.shapes import Position
from metadata.cache import snapshot
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import CatmqError
from metadata.groups import ownership

log = logging.getLogger(__name__)


def pull(
    *, node_id: int, asked: Sequence[PullQueue], consumer: ConsumerId, budget: Budget
) -> dict[int, PulledQueue]:
    """{queue: what the node's replica has}; queues that cannot be served from it are left out."""
    node = node_pools.node(node_id)
    served: dict[int, PulledQueue] = {}
    if node.replica is None or not node.circuit.is_open:
        return served
    queues = [ask.queue for ask in asked]
    try:
        granted = ownership.check_owned(consumer=consumer, queues=queues)
        with node.replica.reading() as session:
            positions = reader_sql.read_positions(
                session, group_id=consumer.group_id, queues=queues, instance=consumer.instance
            )
            for ask in asked:
                position = positions.get(ask.queue)
                if granted.get(ask.queue) == ask.epoch and _says_nothing_against(position, ask, consumer):
                    answer = _read(session, ask, position, budget, group_id=consumer.group_id)  # type: ignore[arg-type]  # it is there
                    served |= {} if answer is None else {ask.queue: answer}
    except CatmqError as error:
        log.info("The replica of node %s cannot be read: %s", node.info.name, error.detail)
    return served


def _says_nothing_against(position: Position | None, ask: PullQueue, consumer: ConsumerId) -> bool:
    if position is None or position.epoch is None:
        return False
    return position.epoch < ask.epoch or (position.epoch == ask.epoch and position.owner == consumer.text)


def _read(
    session: Session, ask: PullQueue, position: Position, budget: Budget, *, group_id: int
) -> PulledQueue | None:
    """Return what is there from the offset on; None if that contradicts itself."""
    head = max(position.head, ask.offset)
    answer = PulledQueue(ask.queue, "ok", [], ask.offset, head, stale=True)
    if ask.offset < position.low:
        return answer._replace(state="cleaned", low=position.low)
    if ask.offset == head or budget.spent():
        return answer
    only = snapshot.current().only(group_id, ask.queue)
    rows = message_sql.select_rows(
        session,
        queue=ask.queue,
        first=ask.offset,
        end=ask.offset + budget.rows(ask.queue, head - ask.offset),
        most_bytes=OVERSHOOT * budget.size,
        only=only,
    )
    if count := dense(ask.offset, [row[ROW_OFFSET] for row in rows]):
        youngest_ms = delivery_delay.youngest_ms(session, group_id=group_id, queue=ask.queue)
        count, _ = delivery_delay.due(rows[:count], youngest_ms=youngest_ms)
        taken, passed = budget.choose(ask.queue, rows[:count], filtered=bool(only))
        return answer._replace(rows=taken, next_offset=ask.offset + passed)
    gaps = queue_sql.read_gaps(session, queue=ask.queue, position=ask.offset)
    verdict = explain(ask.offset, low=position.low, gaps=gaps)
    if verdict.state == "corrupt":
        return None
    return answer._replace(
        state=verdict.state, next_offset=verdict.next_offset, low=position.low, gap=verdict.gap
    )
