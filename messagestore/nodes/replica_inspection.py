"""Contents of a database that is to stand for a node, and what it ought to hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from messagestore.engine.mysql_session import Session
from messagestore.tables import promotion_sql, queue_sql
from metadata.nodes import failovers
from metadata.nodes.failovers import NodeQueue, ReaderEpoch

JUMP = 10_000_000  # offsets; more than a node stores between two notes of its heads


@dataclass(frozen=True, slots=True)
class Lost:
    """The part of a queue's lost tail that a group did not read, as far as brokers had seen
    that.

    `as_of_ms`: when the group's position was looked at last, by the node's clock; what it
    committed since is not known here. None: it never was.
    """

    topic: str
    queue: int
    group: str
    messages: int
    as_of_ms: int | None


def delayed_loss(messages: int) -> str:
    """Say how many messages were lost that no queue has: they waited for their time."""
    return (
        f"up to {messages} messages that waited for their time, delayed or for a retry, "
        "are lost as well: "
        "so many were there when brokers looked last, within a minute before the loss"
    )


def holds(session: Session, old_heads: Mapping[int, int]) -> bool:
    """Return True if a database has every head of another one."""
    heads = queue_sql.read_heads(session, queues=None)
    return all(heads.get(queue) == head for queue, head in old_heads.items())


@dataclass(slots=True)
class ReplicaInspection:
    """Contents of the new database, and what it ought to hold."""

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
        """The head of a queue before anything was lost, as far as it is known."""
        return max(
            queue.highest,
            self.old_heads.get(queue.queue, 0),
            self.heads.get(queue.queue, 0),
        )

    def tail(self, queue: NodeQueue) -> int:
        """Number of a queue's messages that are known to have been stored and are not
        there.
        """
        return 0 if self.complete else self.head(queue) - self.heads.get(queue.queue, 0)

    def raised(self) -> dict[int, int]:
        """{queue: its new head}, above anything that can have been served; empty if nothing
        is missing.
        """
        open_ones = [
            one for one in self.queues if one.state != "retired" and not self.complete
        ]
        return {
            one.queue: max(self.head(one), self.committed.get(one.queue, 0)) + JUMP
            for one in open_ones
        }

    def lost(self) -> tuple[Lost, ...]:
        """Count, for each group, the missing messages that it had not read."""
        by_id = {one.queue: one for one in self.queues if self.tail(one)}
        found = []
        for reader in self.readers:
            queue = by_id.get(reader.queue)
            if queue is None:
                continue
            end = self.head(queue)
            count = end - max(self.heads.get(queue.queue, 0), min(reader.committed, end))
            name = f"{reader.group}/{reader.instance}" if reader.instance else reader.group
            if count:
                found.append(Lost(queue.topic, queue.queue, name, count, reader.as_of_ms))
        return tuple(found)
