"""Storage of delayed messages in a table of their node: exactly once, like every send.

A delayed message is a row of `delayed_message` on the node of its queue, and is durable
when the send is answered. `delayed_delivery` moves it into its queue when it is due. The
sender gets its id, `d<node>-<row>`, which the delivered message keeps in the header
`catmq-delayed-id`. Row numbers are never reused.

The record of such a batch in `sent_batch` has queue 0 and the number of the first row in
place of the first offset. So a repeat returns the same ids even after the messages were
moved or recalled. `verify` selects batch records by queue, and leaves these out.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from messagestore.engine import db_errors
from messagestore.engine.messages import MAX_DELAY_MS, NewMessage, digest, parse_headers
from messagestore.heads.heads import board
from messagestore.pool import node_pools
from messagestore.pool.node import Node
from messagestore.produce.store_retry import Write
from messagestore.tables import delayed_sql, node_sql
from messagestore.tables.delayed_sql import due_at_ms
from messagestore.tables.failure_sql import FailingRow
from messagestore.tables.shapes import DelayedBatch, DelayedRow, NewDelayed, StoredDelays
from metadata.errors import FieldError, Invalid, NodeUnavailable

# A delivery time may have passed this long ago: clocks differ, and a send may be repeated
# for a while.
TOLERANCE_MS = 600_000

_guard = threading.Lock()
_prepared: set[tuple[int, int]] = set()  # (node, epoch) whose tables are known to exist


class DelayedReceipt(NamedTuple):
    """Place of a delayed message, and when it is due (ms since 1970 UTC by its node's
    clock).
    """

    node_id: int
    row: int
    due_at_ms: int

    @property
    def message_id(self) -> str:
        """Id of the message until its delivery."""
        return delayed_id(self.node_id, self.row)


def delayed_id(node_id: int, row: int) -> str:
    """Return the id of a delayed message.

    >>> delayed_id(2, 41)
    'd2-41'
    """
    return f"d{node_id}-{row}"


def parse_delayed_id(text: str, *, field: str = "message_id") -> tuple[int, int]:
    """Return the node and the row that the id of a delayed message names. Raises Invalid.

    >>> parse_delayed_id("d2-41")
    (2, 41)
    """
    node_id, dash, row = text.removeprefix("d").partition("-")
    if (
        text.startswith("d")
        and dash
        and all(n.isascii() and n.isdigit() and len(n) < 19 for n in (node_id, row))
    ):
        return int(node_id), int(row)
    raise Invalid.field(
        field, f"{text!r} is not the id of a delayed message; one looks like d2-41"
    )


def copied(
    row: DelayedRow | FailingRow,
    *,
    delay_ms: int | None = None,
    deliver_at_ms: int | None = None,
) -> NewMessage:
    """Return a new message with the content of a row, and a delay or delivery time."""
    headers = parse_headers(row.headers)
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
    """Store delayed messages on a queue's node in a transaction. Return their receipts.

    `batch_id`: 16 bytes. A repeat with the same id for a queue of the same node returns the
    same receipts, even if the messages were delivered or recalled since. `deadline`: the
    time.monotonic() after which no try begins.

    Raises Conflict (queue_not_writable: the batch is certainly not stored; batch_conflict:
    the id was used for other messages), TooLarge and NodeUnavailable. Raises OutcomeUnknown
    if the batch may be stored; then only a repeat with the same id and queue is safe.
    """
    write = DelayedWrite(messages, batch_id=batch_id, producer=producer, deadline=deadline)
    return write.store_once(queue)


class DelayedWrite(Write[list[DelayedReceipt]]):
    """A write of a batch to a node's table of delayed messages. Its place is its receipts."""

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
        content = digest([delayed.message for delayed in messages])
        # The delivery fields are part of the digest, so that a repeat must have the same.
        delivery_fields = [
            (
                delayed.message.delay_ms,
                delayed.message.deliver_at_ms,
                delayed.by_key,
                delayed.attempt,
                delayed.origin,
            )
            for delayed in messages
        ]
        encoded_fields = msgspec.msgpack.encode(delivery_fields)
        super().__init__(
            batch_id,
            hashlib.sha256(content + encoded_fields).digest()[:16],
            name=name or batch_id.hex(),
            fresh=fresh,
            deadline=deadline,
        )
        self._batch = DelayedBatch(batch_id, self.digest, messages, producer)

    def store(self, node: Node, queue: int, *, alone: bool) -> list[DelayedReceipt]:
        prepare(node)
        try:
            with node.writing() as session:
                epoch = node.info.epoch
                stored = delayed_sql.insert_delayed(
                    session, queue=queue, node_epoch=epoch, batch=self._batch
                )
        # After an error the rows may be stored as well, so the delivery loop is always
        # notified.
        finally:
            board.shared.note_delayed(node.info.id)
        return self._receipts(node, stored)

    def find(self, node: Node) -> tuple[list[DelayedReceipt], None] | None:
        prepare(node)
        with node.reading() as session:
            stored = delayed_sql.find_delayed_batch(session, batch_id=self.batch_id)
        if stored is None:
            return None
        # The digest is None if the record has expired and only the rows are left.
        if stored.digest is not None:
            self.compare(stored.digest)
        return self._receipts(node, stored), None

    def _receipts(self, node: Node, stored: StoredDelays) -> list[DelayedReceipt]:
        return [
            DelayedReceipt(
                node.info.id,
                stored.first_row + index,
                due_at_ms(delayed.message, stored.stored_at_ms),
            )
            for index, delayed in enumerate(self._batch.rows)
        ]


def wrong_times(
    *, messages: Mapping[int, NewMessage], queues: Sequence[int], batch_id: bytes | None
) -> list[FieldError]:
    """Return an error for each delivery time that has long passed, or is more than a year
    away.

    `messages`: the messages by their index in the request. Times are compared with the
    clock of the first node of `queues` that answers. A time that passed less than
    TOLERANCE_MS ago is accepted, and means now. So does any past time in a batch that is
    stored already, as the repeat must get its receipts. Raises NodeUnavailable if none of
    the nodes answers.
    """
    times = {
        index: message.deliver_at_ms
        for index, message in messages.items()
        if message.deliver_at_ms is not None
    }
    if not times:
        return []
    now_ms, is_repeat = _read_clock(queues, batch_id)
    errors = []
    for index, at_ms in times.items():
        if at_ms < now_ms - TOLERANCE_MS and not is_repeat:
            problem = (
                f"passed {(now_ms - at_ms) // 1000} s ago: leave it out to send the "
                "message now"
            )
            errors.append(FieldError(f"messages[{index}].deliver_at_ms", problem))
        elif at_ms > now_ms + MAX_DELAY_MS:
            errors.append(
                FieldError(
                    f"messages[{index}].deliver_at_ms", "is more than a year from now"
                )
            )
    return errors


def _read_clock(queues: Sequence[int], batch_id: bytes | None) -> tuple[int, bool]:
    """Return the clock of the first node that answers, in ms, and whether it stored the
    batch.
    """
    failure: NodeUnavailable | None = None
    for node in {
        node_pools.node_of(queue).info.id: node_pools.node_of(queue) for queue in queues
    }.values():
        try:
            prepare(node)
            with node.reading() as session:
                now_ms = node_sql.now_ms(session)
                record = batch_id and delayed_sql.find_delayed_batch(
                    session, batch_id=batch_id
                )
                return now_ms, bool(record)
        except NodeUnavailable as error:
            failure = error
    raise failure or NodeUnavailable("No node tells the time.")


def prepare(node: Node) -> None:
    """Create the node's tables if they are missing, once per process and node epoch.

    A node that was registered by an earlier version has no table of delayed messages.
    Raises NodeUnavailable.
    """
    mark = (node.info.id, node.info.epoch)
    if mark in _prepared:
        return
    with _guard:
        try:
            # A read-only server has the table already, or nothing can be stored there
            # anyway. After any other error, such as a full disk, the next call tries again.
            with suppress(db_errors.ReadOnly), node.writing() as session:
                node_sql.create_node_tables(session)
        except db_errors.Ambiguous as fault:  # CREATE TABLE IF NOT EXISTS is safe to repeat
            raise NodeUnavailable(fault.detail) from fault
        _prepared.add(mark)


def prepared(node_id: int) -> Node:
    """Return a node after its tables were created if they were missing. Raises
    NodeUnavailable.
    """
    node = node_pools.node(node_id)
    prepare(node)
    return node


def evict_all() -> None:
    """Forget which nodes have their tables, as in a process that has just started."""
    _prepared.clear()
