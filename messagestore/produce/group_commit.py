"""Senders of one queue store together what came while another's transaction ran.

The row lock on the head lets one transaction of a queue commit at a time, and where the binary log is on it
is held through the flushes: one commit per flush and queue. So the first sender of a queue in a worker
leads, and those who come meanwhile join the next transaction: one raise of the head, a row in `sent_batch`
for each, all rows. When such a transaction fails, nothing of it is stored, and each of its batches is tried
alone; when its end was not seen, it was not seen for each of them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import READ_TIMEOUT_S
from messagestore.heads.coalescer import NodeCoalescer
from messagestore.heads.heads import board
from messagestore.pool import known_heads, node_guard
from messagestore.pool.node import Node
from messagestore.produce.store_retry import Write
from messagestore.tables import message_sql
from messagestore.tables.shapes import NewBatch
from metadata.config import config
from metadata.errors import TooLarge

MOST_BYTES = 1 << 20  # bodies of a combined transaction


class _Part(NamedTuple):
    """A batch on its way to the node as its sender knows it."""

    node: Node
    batch: NewBatch


_coalescers: dict[int, NodeCoalescer[_Part, int]] = {}
_guard = threading.Lock()


class BatchWrite(Write[tuple[int, int]]):
    """A batch on its way into a message table: (queue, first offset)."""

    def __init__(self, batch: NewBatch, *, name: object, fresh: bool, deadline: float) -> None:
        super().__init__(batch.batch_id, batch.digest, name=name, fresh=fresh, deadline=deadline)
        self._batch = batch

    def store(self, node: Node, queue: int, *, alone: bool) -> tuple[int, int]:
        """Store the batch, together with others unless `alone`."""
        first: int | None = None
        while first is None:
            with coalescer_of(queue).turn(_Part(node, self._batch), alone=alone) as turn:
                if parts := turn.items:
                    batches = [part.batch for part in parts]
                    lowest = known_heads.known(queue)
                    with node.writing() as session:
                        offset = message_sql.insert_messages(
                            session, queue=queue, node_epoch=node.info.epoch, batches=batches
                        )
                    node_guard.check_stored(node.info, queue=queue, first=offset, lowest=lowest)
                    turn.results = _first_offsets(offset, batches)
            first, alone = turn.result, True
        head = first + len(self._batch.messages)
        known_heads.stored(queue, head)
        board.note(queue, head)
        return queue, first

    def find(self, node: Node) -> tuple[tuple[int, int], Mapping[int, int]] | None:
        with node.reading() as session:
            known = message_sql.find_batch(session, batch_id=self.batch_id)
        if known is None:
            return None
        self.compare(known.digest)
        return (known.queue, known.first_offset), {known.queue: known.first_offset + known.message_count}


def coalescer_of(queue: int) -> NodeCoalescer[_Part, int]:
    """Return what the senders of a queue share."""
    known = _coalescers.get(queue)
    if known is not None:
        return known
    spoiled = (db_errors.RolledBack, db_errors.Final, TooLarge)
    new = NodeCoalescer[_Part, int](
        limit_s=READ_TIMEOUT_S, take=_fitting, check=_check_reachable, apart_after=spoiled
    )
    with _guard:
        return _coalescers.setdefault(queue, new)


def evict_except(queues: Collection[int]) -> None:
    with _guard:
        for queue in _coalescers.keys() - queues:
            del _coalescers[queue]


def _first_offsets(first: int, batches: Sequence[NewBatch]) -> list[int]:
    """Return the first offset of each of some batches that lie one behind the other."""
    lengths = (len(batch.messages) for batch in batches[:-1])
    return list(itertools.accumulate(lengths, initial=first))


def _check_reachable(part: _Part) -> None:
    """Raise NodeUnavailable while the node is known to be away: nobody need wait for what it holds up."""
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
