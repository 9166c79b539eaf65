"""Senders of one queue store together what came while another's transaction ran.

The row lock on the head lets one transaction of a queue commit at a time, and where the binary log is on it
is held through the flushes: one commit per flush and queue. So the first sender of a queue in a worker
leads, and those who come meanwhile join the next transaction: one raise of the head, a row in `sent_batch`
for each, all rows. When such a transaction fails, nothing of it is stored, and each of its batches is tried
alone; when its end was not seen, it was not seen for each of them.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import NamedTuple

from messagestore import tables
from messagestore.engine import db_errors
from messagestore.engine.mysql_session import READ_TIMEOUT_S
from messagestore.heads.coalescer import NodeCoalescer
from messagestore.pool.node_pools import Node
from messagestore.tables import NewBatch
from metadata.config import config
from metadata.errors import TooLarge

MOST_BYTES = 1 << 20  # bodies of a combined transaction


class _Part(NamedTuple):
    """A batch on its way to the node as its sender knows it."""

    node: Node
    batch: NewBatch


Lane = NodeCoalescer[_Part, int | None]
_lanes: dict[int, Lane] = {}
_guard = threading.Lock()


def store(*, node: Node, queue: int, batch: NewBatch, alone: bool) -> int:
    """Stores a batch, together with others unless `alone`; the offset of its first message.

    Raises what `tables.insert_messages` and `Node.writing` raise.
    """
    if not alone:
        first = lane(queue).submit(_Part(node, batch))
        if first is not None:
            return first
    return _insert(node, queue, [batch])


def lane(queue: int) -> Lane:
    """The senders of a queue."""
    known = _lanes.get(queue)
    if known is not None:
        return known
    with _guard:
        new: Lane = NodeCoalescer(
            lambda parts: _together(queue, parts), take=_fitting, check=_reachable, limit_s=READ_TIMEOUT_S
        )
        return _lanes.setdefault(queue, new)


def keep(queues: Collection[int]) -> None:
    """Forgets the lanes of other queues."""
    with _guard:
        for queue in _lanes.keys() - queues:
            del _lanes[queue]


def _insert(node: Node, queue: int, batches: Sequence[NewBatch]) -> int:
    with node.writing() as session:
        return tables.insert_messages(session, queue=queue, node_epoch=node.info.epoch, batches=batches)


def _together(queue: int, parts: Sequence[_Part]) -> Sequence[int | None]:
    """The first offset of each part; None where it must be tried alone."""
    try:
        first = _insert(parts[0].node, queue, [part.batch for part in parts])
    except (db_errors.RolledBack, db_errors.Final, TooLarge):
        if len(parts) == 1:
            raise
        return [None] * len(parts)
    offsets = []
    for part in parts:
        offsets.append(first)
        first += len(part.batch.messages)
    return offsets


def _reachable(part: _Part) -> None:
    """Raises NodeUnavailable while the node is known to be away: nobody need wait for what it holds up."""
    part.node.circuit.check()


def _fitting(parts: Sequence[_Part]) -> int:
    """Number of parts, from the first on, that make one transaction."""
    messages = size = 0
    for count, part in enumerate(parts):
        messages += len(part.batch.messages)
        size += sum(len(message.body) for message in part.batch.messages)
        if part.node is not parts[0].node or messages > config.max_messages or size > MOST_BYTES:
            return count
    return len(parts)
