"""Comparison of a database that shall become a node's primary with the node's own records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from messagestore.engine.mysql_session import Session
from messagestore.tables import promotion_sql, queue_sql
from metadata.nodes import failovers
from metadata.nodes.failovers import NodeQueue, ReaderEpoch
from metadata.rules.topics.states import QueueState
from metadata.rules.wire import Number

# Offsets skipped above the highest known head. A node stores fewer messages than this between
# two records of its heads in metadata, so no lost message can have had a higher offset.
JUMP = 10_000_000


class Lost(Struct, frozen=True):
    """Lost messages that a group had not read."""

    topic: str
    queue: Number
    group: str
    messages: Number
    # By the node's clock; None: the group's position was never recorded.
    as_of_ms: Annotated[
        Number | None,
        Meta(
            description="time of its last known offset; what it has read since then is not known"
        ),
    ]


def delayed_loss(messages: int) -> str:
    return (
        f"up to {messages} messages that waited for their time, delayed or for a retry, "
        "are lost as well: "
        "so many were there when brokers looked last, within a minute before the loss"
    )


def holds(session: Session, old_heads: Mapping[int, int]) -> bool:
    """Return True if a database has reached all heads of another database."""
    heads = queue_sql.read_heads(session, queues=None)
    return all(heads.get(queue) == head for queue, head in old_heads.items())


@dataclass(slots=True)
class ReplicaInspection:
    """Contents of the new database, and the contents it ought to have.

    `complete`: it has reached every head of the old primary, so nothing is lost.
    """

    queues: list[NodeQueue]
    readers: list[ReaderEpoch]
    heads: dict[int, int]
    committed: dict[int, int]
    old_heads: Mapping[int, int]  # of the old primary, if it answered
    complete: bool

    @classmethod
    def of(
        cls, session: Session, node_id: int, old_heads: Mapping[int, int] | None
    ) -> ReplicaInspection:
        return cls(
            queues=failovers.list_queues(node_id),
            readers=failovers.list_readers(node_id),
            heads=queue_sql.read_heads(session, queues=None),
            committed=promotion_sql.read_highest_committed(session),
            old_heads=old_heads or {},
            complete=old_heads is not None and holds(session, old_heads),
        )

    def head(self, queue: NodeQueue) -> int:
        """Return a queue's head before the loss, as far as it is known."""
        return max(
            queue.highest,
            self.old_heads.get(queue.queue, 0),
            self.heads.get(queue.queue, 0),
        )

    def tail(self, queue: NodeQueue) -> int:
        """Return how many messages of a queue are known to be lost."""
        return 0 if self.complete else self.head(queue) - self.heads.get(queue.queue, 0)

    def raised(self) -> dict[int, int]:
        """Return the new head of each queue, above anything that can have been served.

        Empty if nothing is lost.
        """
        # Retired queues get no messages any more, so their heads may stay.
        open_queues = [
            queue
            for queue in self.queues
            if queue.state != QueueState.RETIRED and not self.complete
        ]
        return {
            # A committed offset proves that messages below it were served, even if no head
            # does.
            queue.queue: max(self.head(queue), self.committed.get(queue.queue, 0)) + JUMP
            for queue in open_queues
        }

    def lost(self) -> tuple[Lost, ...]:
        """Return, by group and queue, how many lost messages the group had not read."""
        losing_queues = {queue.queue: queue for queue in self.queues if self.tail(queue)}
        losses = []
        for reader in self.readers:
            queue = losing_queues.get(reader.queue)
            if queue is None:
                continue
            end = self.head(queue)
            # Lost are [replica's head, old head); the group had read those below its
            # position.
            count = end - max(self.heads.get(queue.queue, 0), min(reader.committed, end))
            name = f"{reader.group}/{reader.instance}" if reader.instance else reader.group
            if count:
                losses.append(Lost(queue.topic, queue.queue, name, count, reader.as_of_ms))
        return tuple(losses)
