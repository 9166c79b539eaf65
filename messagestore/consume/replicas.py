"""Pulls from a node's replica while the node itself is unavailable.

A replica lags by an unknown time. That limits its answers:

* A pull at or above the replica's head returns no messages, never an error: later messages
  may not have arrived yet.
* Nothing is acquired or committed there. Consumers continue from their own positions.
* Its reader row may be outdated, and name a former owner. So it does not fence the pull, as the
  row on the node would. Metadata decides who owns the queue, because a queue is granted there
  before it is acquired on the node. Without metadata nothing is served.
* A row can still be newer than metadata: then it has a later epoch, or another owner under the
  same epoch. A pull that the row contradicts in this way is not served.
* A gap or `low` there is as true as on the node. A hole that they do not explain may be a
  fault of the replica alone, so the queue is unavailable and not corrupt.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from messagestore.consume import delivery_delay
from messagestore.consume.budget import OVERSHOOT, Budget
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.engine.messages import ROW_OFFSET
from messagestore.engine.mysql_session import Session
from messagestore.heads.gap_check import dense_length, explain_missing
from messagestore.pool import node_pools
from messagestore.tables import message_sql, queue_sql, reader_sql
from messagestore.tables.shapes import Position
from metadata.cache import snapshot
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import CatmqError
from metadata.groups import ownership

log = logging.getLogger(__name__)


def pull(
    *, node_id: int, queues: Sequence[PullQueue], consumer: ConsumerId, budget: Budget
) -> dict[int, PulledQueue]:
    """Return the answers of the node's replica by queue id. Queues it cannot serve are left
    out.
    """
    node = node_pools.node(node_id)
    served: dict[int, PulledQueue] = {}
    # Only while the circuit is open: a single failed call does not make a node unavailable.
    if node.replica is None or not node.circuit.is_open:
        return served
    queue_ids = [pull_queue.queue for pull_queue in queues]
    try:
        granted = ownership.check_owned(consumer=consumer, queues=queue_ids)
        with node.replica.reading() as session:
            positions = reader_sql.read_positions(
                session,
                group_id=consumer.group_id,
                queues=queue_ids,
                instance=consumer.instance,
            )
            for pull_queue in queues:
                position = positions.get(pull_queue.queue)
                if (
                    position is None
                    or position.epoch is None
                    or granted.get(pull_queue.queue) != pull_queue.epoch
                ):
                    continue
                # The row is newer than the grant of metadata (module docstring).
                if position.epoch > pull_queue.epoch or (
                    position.epoch == pull_queue.epoch and position.owner != consumer.text
                ):
                    continue
                answer = _read_queue(
                    session, pull_queue, position, budget, group_id=consumer.group_id
                )
                if answer is not None:
                    served[pull_queue.queue] = answer
    except CatmqError as error:
        log.info("The replica of node %s cannot be read: %s", node.info.name, error.detail)
    return served


def _read_queue(
    session: Session,
    pull_queue: PullQueue,
    position: Position,
    budget: Budget,
    *,
    group_id: int,
) -> PulledQueue | None:
    """Return the answer of a replica for a queue, None if a hole in its rows is
    unexplained.
    """
    # The head of a replica that lags may be below the consumer's offset. Raised to that offset,
    # it means that there is no message to read.
    head = max(position.head, pull_queue.offset)
    answer = PulledQueue(pull_queue.queue, "ok", [], pull_queue.offset, head, stale=True)
    if pull_queue.offset < position.low:
        return answer._replace(state="cleaned", low=position.low)
    # At the head (or above that of the replica) there is nothing to read.
    if pull_queue.offset == head or budget.spent():
        return answer
    only = snapshot.current().message_filter(group_id, pull_queue.queue)
    rows = message_sql.select_rows(
        session,
        queue=pull_queue.queue,
        first=pull_queue.offset,
        end=pull_queue.offset + budget.rows(pull_queue.queue, head - pull_queue.offset),
        most_bytes=OVERSHOOT * budget.size,
        only=only,
    )
    # First the rows without a hole, then those of them that are due.
    if count := dense_length(pull_queue.offset, [row[ROW_OFFSET] for row in rows]):
        youngest_ms = delivery_delay.youngest_ms(
            session, group_id=group_id, queue=pull_queue.queue
        )
        count, _ = delivery_delay.due(rows[:count], youngest_ms=youngest_ms)
        fitting_rows, passed_offsets = budget.choose(
            pull_queue.queue, rows[:count], filtered=bool(only)
        )
        return answer._replace(
            rows=fitting_rows, next_offset=pull_queue.offset + passed_offsets
        )
    gaps = queue_sql.read_gaps(session, queue=pull_queue.queue, position=pull_queue.offset)
    verdict = explain_missing(pull_queue.offset, low=position.low, gaps=gaps)
    if verdict.state == "corrupt":
        return None
    return answer._replace(
        state=verdict.state,
        next_offset=verdict.next_offset,
        low=position.low,
        gap=verdict.gap,
    )
