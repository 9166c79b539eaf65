"""Messages that wait for their time, in a table of their node: stored once, like every send.

A delayed message is a row of `delayed_message` on the node of its queue, durable when the send is answered.
`delayed_delivery` brings it into its queue when it is due. Its id, `d<node>-<row>`, is told to the sender and
kept in the header `catmq-delayed-id`; rows are never numbered twice.

What `sent_batch` remembers of such a batch has no queue (0) and names its first row: a repeat answers the
same ids, also when the messages have moved or were recalled meanwhile, and `verify`, which asks for the
batches of queues, does not take it for one.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from messagestore.engine import db_errors
from messagestore.engine.messages import MOST_DELAY_MS, NewMessage, digest, headers_of
from messagestore.heads.heads import board
from messagestore.pool import node_pools
from messagestore.pool.node import Node
from messagestore.produce.store_retry import Write
from messagestore.tables import delayed_sql, node_sql
from messagestore.tables.delayed_sql import due_at_ms
from messagestore.tables.failure_sql import FailingRow
from messagestore.tables.shapes import DelayedBatch, DelayedRow, NewDelayed, StoredDelays
from metadata.errors import FieldError, Invalid, NodeUnavailable

TOLERANCE_MS = 600_000  # clocks differ, and a send may be repeated for a while

_guard = threading.Lock()
_prepared: set[tuple[int, int]] = set()  # (node, epoch) whose table this process has made sure of


class DelayedReceipt(NamedTuple):
    """Place of a delayed message, and when it is due (ms since 1970 UTC by its node's clock)."""

    node_id: int
    row: int
    due_at_ms: int

    @property
    def message_id(self) -> str:
        """The message's id, as long as it waits."""
        return delayed_id(self.node_id, self.row)


def delayed_id(node_id: int, row: int) -> str:
    """The id of a delayed message.

    >>> delayed_id(2, 41)
    'd2-41'
    """
    return f"d{node_id}-{row}"


def parse_delayed_id(text: str, *, field: str = "message_id") -> tuple[int, int]:
    """(node, row) of a delayed message's id. Raises Invalid.

    >>> parse_delayed_id("d2-41")
    (2, 41)
    """
    node_id, dash, row = text.removeprefix("d").partition("-")
    parts = (node_id, row)
    if (
        text.startswith("d")
        and dash
        and all(one.isascii() and one.isdigit() and len(one) < 19 for one in parts)
    ):
        return int(node_id), int(row)
    raise Invalid.field(field, f"{text!r} is not the id of a delayed message; one looks like d2-41")


def copied(
    row: DelayedRow | FailingRow, *, delay_ms: int | None = None, deliver_at_ms: int | None = None
) -> NewMessage:
    """A new message with what a stored one carries, and a delay."""
    headers = headers_of(row.headers)
    return NewMessage(
        body=row.body, key=row.key, tag=row.tag, headers=headers, trace_id=row.trace_id,
        delay_ms=delay_ms, deliver_at_ms=deliver_at_ms,
    )  # fmt: skip


def store(
    *,
    queue: int,
    messages: Sequence[NewDelayed],
    batch_id: bytes,
    producer: str,
    deadline: float | None = None,
) -> list[DelayedReceipt]:
    """Store messages on a queue's node, to come into the queue when they are due: all or nothing, and once.

    A repeat with the same 16 bytes of `batch_id`, about a queue of the same node, answers the same receipts,
    whatever became of the messages since. `deadline`: until when to repeat (time.monotonic).

    Raises Conflict (queue_not_writable: then it is certain that the batch is not stored; batch_conflict),
    TooLarge, NodeUnavailable, and OutcomeUnknown: after that only the same batch id and queue are safe.
    """
    write = DelayedWrite(messages, batch_id=batch_id, producer=producer, deadline=deadline)
    return write.store_once(queue)


class DelayedWrite(Write[list[DelayedReceipt]]):
    """Delayed messages on their way into a node's table; their receipts."""

    def __init__(
        self,
        messages: Sequence[NewDelayed],
        *,
        batch_id: bytes,
        producer: str,
        name: str = "",
        fresh: bool = False,
        deadline: float | None = None,
    ) -> None:
        named = name or batch_id.hex()
        super().__init__(batch_id, _digest(messages), name=named, fresh=fresh, deadline=deadline)
        self._batch = DelayedBatch(batch_id, self.digest, messages, producer)

    def store(self, node: Node, queue: int, *, alone: bool) -> list[DelayedReceipt]:
        prepare(node)
        try:
            with node.writing() as session:
                epoch = node.info.epoch
                stored = delayed_sql.insert_delayed(session, queue=queue, node_epoch=epoch, batch=self._batch)
        finally:  # also of what may be stored
            board.shared.note_delayed(node.info.id)
        return self._receipts(node, stored)

    def find(self, node: Node) -> tuple[list[DelayedReceipt], None] | None:
        prepare(node)
        with node.reading() as session:
            stored = delayed_sql.find_delayed_batch(session, batch_id=self.batch_id)
        if stored is None:
            return None
        if stored.digest is not None:
            self.compare(stored.digest)
        return self._receipts(node, stored), None

    def _receipts(self, node: Node, stored: StoredDelays) -> list[DelayedReceipt]:
        return [
            DelayedReceipt(
                node.info.id, stored.first_row + index, due_at_ms(one.message, stored.stored_at_ms)
            )
            for index, one in enumerate(self._batch.rows)
        ]


def _digest(messages: Sequence[NewDelayed]) -> bytes:
    """16 bytes that tell two batches apart, by what would be stored of them."""
    content = digest([one.message for one in messages])
    rest = [
        (one.message.delay_ms, one.message.deliver_at_ms, one.by_key, one.attempt, one.origin)
        for one in messages
    ]
    return hashlib.sha256(content + msgspec.msgpack.encode(rest)).digest()[:16]


def wrong_times(
    *, messages: Mapping[int, NewMessage], queues: Sequence[int], batch_id: bytes | None
) -> list[FieldError]:
    """Return the errors in the times of delivery of some messages, {index: message}, by the clock of the node
    that is to keep them. A time that passed less than TOLERANCE_MS ago is now, and so is any of a batch that
    is stored already. Raises NodeUnavailable when none of the queues' nodes answers.
    """
    times = {index: one.deliver_at_ms for index, one in messages.items() if one.deliver_at_ms is not None}
    if not times:
        return []
    now_ms, is_known = _now_ms(queues, batch_id)
    errors = []
    for index, at_ms in times.items():
        if at_ms < now_ms - TOLERANCE_MS and not is_known:
            what = f"passed {(now_ms - at_ms) // 1000} s ago: leave it out to send the message now"
            errors.append(FieldError(f"messages[{index}].deliver_at_ms", what))
        elif at_ms > now_ms + MOST_DELAY_MS:
            errors.append(FieldError(f"messages[{index}].deliver_at_ms", "is more than a year from now"))
    return errors


def _now_ms(queues: Sequence[int], batch_id: bytes | None) -> tuple[int, bool]:
    """The time on the first node that tells it, and whether it knows the batch."""
    failure: NodeUnavailable | None = None
    for node in {node_pools.node_of(queue).info.id: node_pools.node_of(queue) for queue in queues}.values():
        try:
            prepare(node)
            with node.reading() as session:
                now_ms = node_sql.now_ms(session)
                known = batch_id and delayed_sql.find_delayed_batch(session, batch_id=batch_id)
                return now_ms, bool(known)
        except NodeUnavailable as error:
            failure = error
    raise failure or NodeUnavailable("No node tells the time.")


def prepare(node: Node) -> None:
    """Make sure that the node has its table: one that was registered by an earlier version gets it now.

    A server that is read-only has it, or nothing can be stored there anyway. Raises NodeUnavailable.
    """
    mark = (node.info.id, node.info.epoch)
    if mark in _prepared:
        return
    with _guard:
        try:
            with suppress(db_errors.RolledBack), node.writing() as session:
                node_sql.create_node_tables(session)
        except db_errors.Ambiguous as fault:  # done or not, it can be done again
            raise NodeUnavailable(fault.detail) from fault
        _prepared.add(mark)


def prepared(node_id: int) -> Node:
    """A node, once it has its table."""
    node = node_pools.node(node_id)
    prepare(node)
    return node


def evict_all() -> None:
    """Knows of no node's table any more, like a process that has just started."""
    _prepared.clear()
