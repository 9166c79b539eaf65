"""Compares heads, positions and states of queues on their node with metadata.

Metadata is read before and after the node. On a node the order is: reader rows, then for
each queue gaps, last row, and the head at the end. Whatever must not be above a head was
read before it, so nothing new can cause a finding. A difference from metadata must exist
against both readings of metadata, and all of this twice, a moment apart, because a change
of state reaches the node and metadata at different moments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.tables import audit_sql, queue_sql
from messagestore.tables.shapes import Head, ReaderRow
from messagestore.tables.shares import run_sql
from messagestore.tables.shares.run_sql import QueueShare
from messagestore.verify import leases
from messagestore.verify.findings import Finding, Opening
from messagestore.verify.ranges import Range, shown
from metadata.groups.expected_state import ExpectedQueue, ExpectedReader
from metadata.rules.nodes import NodeState
from metadata.rules.topics.states import QueueState

HEAD_STATES: dict[str, str] = {
    QueueState.READ_WRITE: "rw",
    QueueState.READ_ONLY: "ro",
    QueueState.RETIRED: "retired",
}
Judgements = Iterator[Finding | str]  # a text is a note: unusual but explained


@dataclass(slots=True)
class Look:
    """A queue as its node has it. `unreadable` is the node's error about the table."""

    gaps: list[Range] = field(default_factory=list)
    last: int | None = None
    unreadable: str | None = None
    head: Head | None = None
    readers: list[ReaderRow] = field(default_factory=list)
    shares: list[QueueShare] = field(default_factory=list)


def look(session: Session, *, queues: Sequence[int]) -> dict[int, Look]:
    """Read some queues of a node, in the order that makes the values comparable."""
    # Reader rows first, heads last: a position above a head is then a finding, not a race.
    readers = audit_sql.list_readers(session, queues=queues)
    looks = {}
    for queue in queues:
        queue_look = Look(gaps=queue_sql.read_gaps(session, queue=queue, position=0))
        queue_look.shares = run_sql.list_queue_shares(session, queue=queue)
        try:
            _, queue_look.last = audit_sql.read_offset_ends(session, queue=queue, first=0)
        except db_errors.Final as fault:
            queue_look.unreadable = fault.detail
        queue_look.head = queue_sql.read_head(session, queue=queue)
        looks[queue] = queue_look
    for row in readers:
        looks[row.queue].readers.append(row)
    return looks


def judge(
    *, seen: Look, opening: Opening | None, before: ExpectedQueue, after: ExpectedQueue
) -> list[Finding | str]:
    """Return findings and notes on a queue that was read between two readings of metadata."""
    if after.gone and seen.unreadable is not None and seen.head is None:
        return ["retired, and its table is gone or was never made"]
    judged = [*_check_readers(seen, before, after)]
    if seen.unreadable is not None:
        judged.append(
            Finding("unreadable", f"table message_{after.queue}", seen.unreadable)
        )
    if seen.head is None:
        return [
            *judged,
            Finding("head_missing", "queue_head", "there is no row for this queue"),
        ]
    judged += _check_head(seen, seen.head, opening)
    names = {reader.group_id: reader.group for reader in after.readers}
    judged += leases.judge(
        seen.shares, readers=seen.readers, head=seen.head.head, names=names
    )
    # Only if the state did not change meanwhile. Otherwise nothing can be concluded.
    if (before.state, before.node_state, before.node_epoch) == (
        after.state,
        after.node_state,
        after.node_epoch,
    ):
        judged += _check_state(seen.head, after)
    return judged


def _check_head(queue_look: Look, head: Head, opening: Opening | None) -> Judgements:
    """Yield findings on the bounds of a queue."""
    if not 0 <= head.low <= head.head:
        yield Finding(
            "low_outside",
            "queue_head",
            f"log start offset {head.low}, log end offset {head.head}",
        )
    if queue_look.last is not None and queue_look.last >= head.head:
        detail = (
            f"the log end offset is {head.head}, but there are rows up to "
            f"offset {queue_look.last}"
        )
        span = head.head, queue_look.last + 1
        yield Finding("head_behind", shown(*span), detail, *span)
    if opening is not None and head.head < opening.head:
        detail = f"the log end offset is {head.head}; it was {opening.head}"
        yield Finding("head_fell", "queue_head", detail)
    for first, end in queue_look.gaps:
        if end > head.head:
            detail = (
                f"the gap {first} … {end - 1} reaches above the log end offset, {head.head}"
            )
            yield Finding("gap_above_head", shown(first, end), detail, first, end)


def _check_state(head: Head, queue: ExpectedQueue) -> Judgements:
    """Yield a finding or a note if node and metadata disagree on state or epoch."""
    if head.node_epoch != queue.node_epoch:
        detail = f"the queue has node epoch {head.node_epoch}, node {queue.node} {queue.node_epoch}"
        yield Finding("node_epoch_differs", "queue_head", detail)
    expected_state = HEAD_STATES[queue.state]
    # A node that is not open closes its queues, whatever their own state is.
    closed = queue.node_state != NodeState.READ_WRITE and expected_state == "rw"
    if head.state == ("ro" if closed else expected_state):
        if closed:
            yield f"closed, because node {queue.node} is {queue.node_state}"
        return
    metadata_state = f"{queue.state}, and node {queue.node} {queue.node_state}"
    yield Finding(
        "state_differs",
        "queue_head",
        f"the node has {head.state}, metadata {metadata_state}",
    )


def _check_readers(
    queue_look: Look, before: ExpectedQueue, after: ExpectedQueue
) -> Judgements:
    """Yield findings on the committed offsets, and on readers that metadata expects."""
    names = {
        (reader.group_id, reader.instance): (reader.group, reader.instance_name)
        for reader in after.readers
    }
    head = queue_look.head.head if queue_look.head else None
    for row in queue_look.readers:
        unknown = f"with id {row.group_id}", row.instance
        where = _reader_name(*names.get((row.group_id, row.instance), unknown))
        if row.committed < 0:
            yield Finding(
                "committed_below", where, f"the committed offset is {row.committed}"
            )
        elif head is not None and row.committed > head:
            detail = f"the committed offset is {row.committed}, the log end offset {head}"
            yield Finding("committed_above", where, detail, head, row.committed)
    rows = {(row.group_id, row.instance): row for row in queue_look.readers}
    subscribed_before = {reader.subscription_id for reader in before.readers}
    for reader in after.readers:
        # A subscription made between the two readings may not have its rows yet.
        if reader.subscription_id in subscribed_before:
            yield from _check_reader(reader, rows.get((reader.group_id, reader.instance)))


def _check_reader(reader: ExpectedReader, row: ReaderRow | None) -> Judgements:
    """Yield findings on a reader that metadata expects."""
    where = _reader_name(reader.group, reader.instance_name)
    if reader.epoch is None:
        yield Finding(
            "position_missing", where, "there is no row for this queue in metadata"
        )
    if row is None:
        if reader.required:
            yield Finding("reader_missing", where, "there is no reader row on the node")
    elif row.epoch < reader.base_epoch:
        detail = f"the reader row belongs to an earlier subscription (epoch {row.epoch})"
        yield Finding("reader_missing", where, detail)
    elif reader.epoch is not None and row.epoch > reader.epoch:
        detail = f"the node has epoch {row.epoch}, metadata {reader.epoch}"
        # A reset removes the owner and raises the epoch on the node. The next acquire writes
        # it to metadata.
        yield (
            Finding("epoch_ahead", where, detail)
            if row.owner
            else f"{where}: {detail}, after a reset"
        )


def _reader_name(group: str, instance: str) -> str:
    return f"group {group}, instance {instance}" if instance else f"group {group}"
