"""Storage of a batch in a queue: tried, repeated where that is safe, and stored exactly
once.

Message tables, the tables of delayed messages and dead letters share these rules. A
subclass of Write implements the transaction (`store`) and the look-up of an earlier try
(`find`); this module decides which error is repeated, which is final, and when the outcome
is unknown.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, TypeVar

from messagestore.engine import db_errors
from messagestore.heads import corruption, durability, partitions
from messagestore.pool import node_guard, node_pools
from messagestore.pool.node import Node
from messagestore.tables import queue_sql
from metadata.cache import snapshot
from metadata.errors import (
    CatmqError,
    Code,
    Conflict,
    NodeUnavailable,
    OutcomeUnknown,
    StoreCorrupt,
    Unavailable,
)
from metadata.rules.alarm_texts import alarm_text
from metadata.rules.disks import DiskState
from metadata.rules.nodes import NodeState
from metadata.rules.topics.states import QueueState

REPEATS = 3  # after the first try
DEADLINE_S = 8.0  # less than the client's request timeout of 10 s

StoredPlace = TypeVar("StoredPlace")


class Write(ABC, Generic[StoredPlace]):
    """A write of a batch to a queue, which is safe to repeat.

    `name`: the batch id as its sender knows it, for errors. `fresh`: no earlier request can
    have stored the batch. `deadline`: the time.monotonic() after which no try begins.
    """

    def __init__(
        self,
        batch_id: bytes,
        digest: bytes,
        *,
        name: object,
        fresh: bool,
        deadline: float | None = None,
    ) -> None:
        self.batch_id, self.digest, self.name, self.fresh = batch_id, digest, name, fresh
        self.deadline = time.monotonic() + DEADLINE_S if deadline is None else deadline

    @abstractmethod
    def store(self, node: Node, queue: int, *, alone: bool) -> StoredPlace:
        """Store the batch and return its place. Raises `db_errors.*`.

        `alone`: in a transaction of its own, not combined with other batches.
        """

    @abstractmethod
    def find(self, node: Node) -> tuple[StoredPlace, Mapping[int, int] | None] | None:
        """Return the place where an earlier try stored the batch, or None if it is not
        stored.

        Also returns the heads, {queue: head}, that must be durable before the place is sent
        to anybody; None for the heads means everything that was visible on the node. Raises
        Conflict if the batch id was used for other messages.
        """

    def store_once(self, queue: int) -> StoredPlace:
        """Store the batch and return its place, or the place where an earlier request
        stored it.

        Repeats a failed try up to REPEATS times before the deadline. Raises the last error,
        or OutcomeUnknown if the outcome of a try is unknown and no later try could
        determine it. Marks the queue as corrupt if its table is missing or was altered.
        """
        # Once a try has an unknown outcome, a later refusal does not prove that the batch
        # is not stored. So `doubt` is the error to raise, unless a later try succeeds.
        doubt: OutcomeUnknown | None = None
        error: CatmqError
        for repeat in range(REPEATS + 1):
            try:
                # A combined transaction that failed may have failed because of another
                # sender's batch, so repeats are never combined.
                return self._attempt(queue, alone=repeat > 0)
            except db_errors.Altered as fault:
                corruption.report(queue, offset=None, why=fault.detail)
                raise
            except db_errors.Ambiguous as fault:
                error = doubt = fault
            except db_errors.NoPartition as fault:
                error = doubt or fault
                if doubt is None:
                    # The repeat needs the missing partitions. If they cannot be added, that
                    # is the error to raise.
                    try:
                        partitions.extend(queue)
                    except CatmqError as failure:
                        error = failure
            except Unavailable as refusal:
                error = doubt or refusal
                # Only a rolled-back transaction is worth another try here. A full disk
                # stays full for longer than the deadline.
                if (
                    not isinstance(refusal, db_errors.RolledBack)
                    or refusal.code == Code.NODE_FULL
                ):
                    break
            if repeat == REPEATS or time.monotonic() > self.deadline:
                break
            # Jitter: transactions that met in a deadlock should not meet again.
            time.sleep(random.uniform(0.005, 0.03) * (repeat + 1))
        raise error

    def _attempt(self, queue: int, *, alone: bool) -> StoredPlace:
        """Try once to store the batch. After a refusal, look for an earlier try that stored
        it.
        """
        info = snapshot.find_queue(queue)
        if info.state == QueueState.CREATING:
            # Another broker may have opened the queue, and clients may know it before this
            # process does.
            snapshot.refresh()
            info = snapshot.find_queue(queue)
        node = node_pools.node(info.node_id)
        refusal: CatmqError
        # By this process's snapshot. If both are open, the node has the last word.
        if info.state != QueueState.READ_WRITE or node.info.state != NodeState.READ_WRITE:
            refusal = _closed(info.id, node, "not open for sends")
        elif node.info.disk == DiskState.FULL:
            cause = (
                f"The disk of node {node.info.name} is nearly full, so it stores nothing. "
                "Name a queue on another node."
            )
            refusal = db_errors.RolledBack(
                cause, code=Code.NODE_FULL, retry_after_ms=10_000
            )
        else:
            try:
                return self.store(node, queue, alone=alone)
            except (db_errors.Duplicate, db_errors.Refused) as fault:
                refusal = fault
        # A refusal is final only if no earlier try stored the batch. The head row is
        # updated before `sent_batch`, so a closed queue refuses a repeat without a look at
        # that record.
        stored = None if self.fresh and refusal.code == Code.NODE_FULL else self.find(node)
        if stored is None:
            raise _explain(refusal, queue, node)
        stored_place, heads = stored
        # The record was read and not written by this process, so it may be visible before
        # it is on disk. A receipt must not be sent before that: a killed server would lose
        # the messages.
        try:
            durability.confirm(node_id=node.info.id, heads=heads)
        except NodeUnavailable as error:
            raise db_errors.Ambiguous(
                f"Stored, but perhaps not durably: {error.detail}"
            ) from error
        return stored_place

    def compare(self, digest: bytes) -> None:
        """Raise Conflict if the digest that is stored under the batch id is not this
        batch's.
        """
        if digest != self.digest:
            cause = (
                f"batch_id {self.name} was already used for other messages; make a new "
                "one for each batch"
            )
            raise Conflict(cause, code=Code.BATCH_CONFLICT)


def _explain(refusal: CatmqError, queue: int, node: Node) -> CatmqError:
    """Return the error to raise for a refusal, given that the batch is certainly not
    stored.

    Marks the queue as corrupt if a message already has the offset that the batch would have
    got.
    """
    if isinstance(refusal, db_errors.Duplicate):
        # A duplicate key (1062) without a record in `sent_batch`: the key was the offset,
        # so the head is too low.
        corruption.report(
            queue, offset=None, why=alarm_text("end_refused", error=refusal.detail)
        )
        return StoreCorrupt(
            f"Queue {queue}: log end offset below a stored message. Run manage.py verify."
        )
    if not isinstance(refusal, db_errors.Refused):
        return refusal
    # The transaction reports no cause when the head row does not match. Read the row to
    # name it.
    with node.reading() as session:
        head = queue_sql.read_head(session, queue=queue)
    if head is None:
        return _closed(queue, node, "without a row in queue_head")
    if head.state != "rw":
        return _closed(queue, node, {"ro": "read-only"}.get(head.state, head.state))
    if head.node_epoch != node.info.epoch:
        snapshot.refresh()
        reloaded = snapshot.current().nodes.get(node.info.id)
        if (
            reloaded is not None
            and reloaded.epoch != head.node_epoch
            and reloaded.state != NodeState.OFFLINE
        ):
            # Reloading did not help: metadata or the node was restored to a state before
            # the node's last adoption. No repeat can succeed.
            why = node_guard.epoch_fault(
                reloaded.name, stored=head.node_epoch, expected=reloaded.epoch
            )
            return NodeUnavailable(why, retry_after_ms=5000)
    return db_errors.RolledBack(
        f"Queue {queue} on node {node.info.name} changed meanwhile."
    )


def _closed(queue: int, node: Node, condition: str) -> Conflict:
    cause = f"Queue {queue} on node {node.info.name} is {condition}. Name another queue, or none."
    return Conflict(cause, code=Code.QUEUE_NOT_WRITABLE)
