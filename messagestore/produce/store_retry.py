"""A write to a queue or about one: tried, repeated where that is safe, and stored once.

What `publish` puts into a message table and what `delays` puts into the table of delayed messages meet the
same refusals and the same doubts: this module is how both deal with them.
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
from metadata.rules.alarm_texts import say

REPEATS = 3
DEADLINE_S = 8.0  # inside the client's request timeout of 10 s

Place = TypeVar("Place")


class Write(ABC, Generic[Place]):
    """Messages of one batch on their way to one queue.

    `name`: of the batch, as its sender knows it; `fresh`: no earlier request can have stored it; `deadline`:
    until when to repeat (time.monotonic).
    """

    def __init__(
        self, batch_id: bytes, digest: bytes, *, name: object, fresh: bool, deadline: float | None = None
    ) -> None:
        self.batch_id, self.digest, self.name, self.fresh = batch_id, digest, name, fresh
        self.deadline = time.monotonic() + DEADLINE_S if deadline is None else deadline

    @abstractmethod
    def store(self, node: Node, queue: int, *, alone: bool) -> Place:
        """Store them; raises `db_errors.*`. `alone`: in a transaction of their own."""

    @abstractmethod
    def find(self, node: Node) -> tuple[Place, Mapping[int, int] | None] | None:
        """Return where they are stored, if they are, and the heads that must be durable before that is told.

        None for the heads: all that could be seen. Raises Conflict if their id is another's.
        """

    def store_once(self, queue: int) -> Place:
        """Store the messages, return their place; elsewhere if an earlier request stored them there.

        Raises what stopped it, and OutcomeUnknown if a try ended unseen and no later one could clear it up.
        A queue whose table is missing or was altered is marked.
        """
        doubt: OutcomeUnknown | None = None
        error: CatmqError
        for repeat in range(REPEATS + 1):
            try:
                return self._attempt(queue, alone=repeat > 0)
            except db_errors.Altered as fault:
                corruption.report(queue, offset=None, why=fault.detail)
                raise
            except db_errors.Ambiguous as fault:
                error = doubt = fault
            except db_errors.NoPartition as fault:
                error = doubt or _extended(queue, fault)
            except Unavailable as refusal:
                error = doubt or refusal
                if not isinstance(refusal, db_errors.RolledBack) or refusal.code == Code.NODE_FULL:
                    break
            if repeat == REPEATS or time.monotonic() > self.deadline:
                break
            time.sleep(random.uniform(0.005, 0.03) * (repeat + 1))
        raise error

    def _attempt(self, queue: int, *, alone: bool) -> Place:
        node = node_pools.node_of(queue)
        refusal = _refusal(queue, node)
        if refusal is None:
            try:
                return self.store(node, queue, alone=alone)
            except (db_errors.Duplicate, db_errors.Refused) as fault:
                refusal = fault
        found = None if self.fresh and refusal.code == Code.NODE_FULL else self.find(node)
        if found is None:
            raise _explained(refusal, queue, node)
        place, heads = found
        try:
            durability.confirm(node_id=node.info.id, heads=heads)
        except NodeUnavailable as error:
            raise db_errors.Ambiguous(f"Stored, but perhaps not durably: {error.detail}") from error
        return place

    def compare(self, digest: bytes) -> None:
        """Raise Conflict if what is stored under this id is something else."""
        if digest != self.digest:
            what = f"batch_id {self.name} was already used for other messages; make a new one for each batch"
            raise Conflict(what, code=Code.BATCH_CONFLICT)


def _extended(queue: int, fault: db_errors.NoPartition) -> CatmqError:
    """Make the partitions that were missing; the error to report if the repeat meets the same."""
    try:
        partitions.extend(queue)
    except CatmqError as error:
        return error
    return fault


def _refusal(queue: int, node: Node) -> CatmqError | None:
    """Return why nothing is stored in a queue now, as far as this process knows without asking."""
    if snapshot.find_queue(queue).state == "creating":
        snapshot.refresh()  # clients may hear sooner than this process that it is open
    if snapshot.find_queue(queue).state != "read_write" or node.info.state != "read_write":
        return _closed(queue, node, "not open for sends")
    if node.info.disk != "full":
        return None
    name = node.info.name
    what = f"The disk of node {name} is nearly full, so it stores nothing. Name a queue on another node."
    return db_errors.RolledBack(what, code=Code.NODE_FULL, retry_after_ms=10_000)


def _explained(refusal: CatmqError, queue: int, node: Node) -> CatmqError:
    """Return the error to report for a refusal, now that it is certain that the batch is not stored."""
    if isinstance(refusal, db_errors.Duplicate):
        corruption.report(queue, offset=None, why=say("end_refused", error=refusal.detail))
        return StoreCorrupt(f"Queue {queue}: log end offset below a stored message. Run manage.py verify.")
    if not isinstance(refusal, db_errors.Refused):
        return refusal
    with node.reading() as session:
        head = queue_sql.read_head(session, queue=queue)
    if head is None:
        return _closed(queue, node, "without a row in queue_head")
    if head.state != "rw":
        return _closed(queue, node, {"ro": "read-only"}.get(head.state, head.state))
    if head.node_epoch != node.info.epoch:
        snapshot.refresh()
        fresh = snapshot.current().nodes.get(node.info.id)
        if fresh is not None and fresh.epoch != head.node_epoch and fresh.state != "offline":
            # No repeat can help: metadata, or the node, was restored to before the node's last adoption.
            why = node_guard.epoch_fault(fresh.name, stored=head.node_epoch, expected=fresh.epoch)
            return NodeUnavailable(why, retry_after_ms=5000)
    return db_errors.RolledBack(f"Queue {queue} on node {node.info.name} changed meanwhile.")


def _closed(queue: int, node: Node, how: str) -> Conflict:
    what = f"Queue {queue} on node {node.info.name} is {how}. Name another queue, or none."
    return Conflict(what, code=Code.QUEUE_NOT_WRITABLE)
