"""Group commit: batches for a queue that arrive during a transaction share the next.

The row lock on the head allows a single committing transaction per queue. With a binary
log, the lock is held during the flushes, so a queue gets a commit per flush. So the first
sender of a queue in a worker leads, and the senders that arrive meanwhile join the next
transaction. It raises the head once, and inserts a row into `sent_batch` for each batch,
and all messages. If such a transaction is rolled back, nothing of it is stored, and each of
its batches is tried alone. If its outcome is unknown, it is unknown for each of its
batches.
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

MOST_BYTES = 1 << 20  # total size of the bodies in a combined transaction


class _QueuedBatch(NamedTuple):
    """A batch, and its node by its sender's snapshot, which may be newer than another
    sender's.
    """

    node: Node
    batch: NewBatch


_coalescers: dict[int, NodeCoalescer[_QueuedBatch, int]] = {}
_guard = threading.Lock()


class BatchWrite(Write[tuple[int, int]]):
    """A write of a batch to a message table. Its place is (queue, first offset)."""

    def __init__(
        self, batch: NewBatch, *, name: object, fresh: bool, deadline: float
    ) -> None:
        super().__init__(
            batch.batch_id, batch.digest, name=name, fresh=fresh, deadline=deadline
        )
        self._batch = batch

    def store(self, node: Node, queue: int, *, alone: bool) -> tuple[int, int]:
        """Store the batch, combined with waiting batches of other senders unless `alone`.

        Returns the queue and the first offset of this batch.
        """
        first: int | None = None
        while first is None:
            with coalescer_of(queue).turn(
                _QueuedBatch(node, self._batch), alone=alone
            ) as turn:
                if queued_batches := turn.items:
                    batches = [queued.batch for queued in queued_batches]
                    # Read before the transaction: afterwards another send of this process
                    # may have raised it, and the offset of this send would look too low.
                    lowest_head = known_heads.lowest_head(queue)
                    with node.writing() as session:
                        offset = message_sql.insert_messages(
                            session,
                            queue=queue,
                            node_epoch=node.info.epoch,
                            batches=batches,
                        )
                    # A lower offset than this process has seen: the server was restored
                    # from a backup under an open connection.
                    node_guard.check_stored(
                        node.info, queue=queue, first=offset, lowest=lowest_head
                    )
                    # The offsets of the batches are consecutive.
                    lengths = (len(batch.messages) for batch in batches[:-1])
                    turn.results = list(itertools.accumulate(lengths, initial=offset))
            # No result: the combined transaction was rolled back. The next try is not
            # combined.
            first, alone = turn.result, True
        head = first + len(self._batch.messages)
        # The COMMIT was acknowledged, so this head is durable. Readers that wait for it are
        # woken.
        known_heads.note_stored(queue, head)
        board.note(queue, head)
        return queue, first

    def find(self, node: Node) -> tuple[tuple[int, int], Mapping[int, int]] | None:
        with node.reading() as session:
            record = message_sql.find_batch(session, batch_id=self.batch_id)
        if record is None:
            return None
        self.compare(record.digest)
        return (record.queue, record.first_offset), {
            record.queue: record.first_offset + record.message_count
        }


def coalescer_of(queue: int) -> NodeCoalescer[_QueuedBatch, int]:
    """Return the coalescer through which this worker's senders of a queue combine their
    batches.
    """
    coalescer = _coalescers.get(queue)
    if coalescer is not None:
        return coalescer

    new_coalescer = NodeCoalescer[_QueuedBatch, int](
        limit_s=READ_TIMEOUT_S,
        take=_count_fitting,
        # While the node's circuit is open, waiting for a turn would be in vain.
        check=lambda queued: queued.node.circuit.check(),
        apart_after=(db_errors.RolledBack, db_errors.Final, TooLarge),
    )
    # Two senders may arrive first at once; setdefault under the lock gives both the same
    # coalescer.
    with _guard:
        return _coalescers.setdefault(queue, new_coalescer)


def evict_except(queues: Collection[int]) -> None:
    """Forget the coalescers of all other queues. Senders that wait in it can still finish."""
    with _guard:
        for queue in _coalescers.keys() - queues:
            del _coalescers[queue]


def _count_fitting(queued_batches: Sequence[_QueuedBatch]) -> int:
    """Return the number of leading batches that fit into a transaction.

    Returns 0 if the first batch is too large by itself; the coalescer then takes it alone.
    """
    messages = size = 0
    for count, queued in enumerate(queued_batches):
        messages += len(queued.batch.messages)
        size += sum(len(message.body) for message in queued.batch.messages)
        # A transaction has a single node epoch, so batches for a former and a present node
        # do not mix.
        if (
            queued.node is not queued_batches[0].node
            or messages > config.max_messages
            or size > MOST_BYTES
        ):
            return count
    return len(queued_batches)
