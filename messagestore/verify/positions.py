"""Heads, positions and states of queues, on their node and in metadata.

Metadata is read before and after the node. On a node the order is: reader rows, then per
queue gaps, last row, and the head at last: whatever must not be above a head was read
before it, so it cannot have come meanwhile. What contradicts metadata must contradict both
readings of it, and all of this twice, a moment apart: a change of state goes to node and
metadata one after the other.
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

HEAD_STATES = {"read_write": "rw", "read_only": "ro", "retired": "retired"}
Judged = Iterator[Finding | str]  # a text is a note: odd, but explained


@dataclass(slots=True)
class Look:
    """A queue as its node showed it. `unreadable`: what the node said of the table."""

    gaps: list[Range] = field(default_factory=list)
    last: int | None = None
    unreadable: str | None = None
    head: Head | None = None
    readers: list[ReaderRow] = field(default_factory=list)
    shares: list[QueueShare] = field(default_factory=list)


def look(session: Session, *, queues: Sequence[int]) -> dict[int, Look]:
    """Read some queues of one node, in the order that makes what is seen fit together."""
    readers = audit_sql.list_readers(session, queues=queues)
    looks = {queue: _one(session, queue) for queue in queues}
    for row in readers:
        looks[row.queue].readers.append(row)
    return looks


def _one(session: Session, queue: int) -> Look:
    seen = Look(gaps=queue_sql.read_gaps(session, queue=queue, position=0))
    seen.shares = run_sql.list_queue_shares(session, queue=queue)
    try:
        _, seen.last = audit_sql.read_offset_ends(session, queue=queue, first=0)
    except db_errors.Final as fault:
        seen.unreadable = fault.detail
    seen.head = queue_sql.read_head(session, queue=queue)
    return seen


def judge(
    *, seen: Look, opening: Opening | None, before: ExpectedQueue, after: ExpectedQueue
) -> list[Finding | str]:
    """Return what is wrong with a queue as it was seen between two readings of metadata."""
    if after.gone and seen.unreadable is not None and seen.head is None:
        return ["retired, and its table is gone or was never made"]
    judged = [*_of_readers(seen, before, after)]
    if seen.unreadable is not None:
        judged.append(
            Finding("unreadable", f"table message_{after.queue}", seen.unreadable)
        )
    if seen.head is None:
        return [
            *judged,
            Finding("head_missing", "queue_head", "there is no row for this queue"),
        ]
    judged += _of_head(seen, seen.head, opening)
    names = {one.group_id: one.group for one in after.readers}
    judged += leases.judge(
        seen.shares, readers=seen.readers, head=seen.head.head, names=names
    )
    if (before.state, before.node_state, before.node_epoch) == (
        after.state,
        after.node_state,
        after.node_epoch,
    ):
        judged += _of_state(seen.head, after)
    return judged


def _of_head(seen: Look, head: Head, opening: Opening | None) -> Judged:
    if not 0 <= head.low <= head.head:
        yield Finding(
            "low_outside",
            "queue_head",
            f"log start offset {head.low}, log end offset {head.head}",
        )
    if seen.last is not None and seen.last >= head.head:
        what = f"the log end offset is {head.head}, but there are rows up to offset {seen.last}"
        span = head.head, seen.last + 1
        yield Finding("head_behind", shown(*span), what, *span)
    if opening is not None and head.head < opening.head:
        what = f"the log end offset is {head.head}; it was {opening.head}"
        yield Finding("head_fell", "queue_head", what)
    for first, end in seen.gaps:
        if end > head.head:
            what = (
                f"the gap {first} … {end - 1} reaches above the log end offset, {head.head}"
            )
            yield Finding("gap_above_head", shown(first, end), what, first, end)


def _of_state(head: Head, queue: ExpectedQueue) -> Judged:
    if head.node_epoch != queue.node_epoch:
        what = f"the queue has node epoch {head.node_epoch}, node {queue.node} {queue.node_epoch}"
        yield Finding("node_epoch_differs", "queue_head", what)
    wanted = HEAD_STATES[queue.state]
    closed = queue.node_state != "read_write" and wanted == "rw"
    if head.state == ("ro" if closed else wanted):
        if closed:
            yield f"closed, because node {queue.node} is {queue.node_state}"
        return
    meant = f"{queue.state}, and node {queue.node} {queue.node_state}"
    yield Finding(
        "state_differs", "queue_head", f"the node has {head.state}, metadata {meant}"
    )


def _of_readers(seen: Look, before: ExpectedQueue, after: ExpectedQueue) -> Judged:
    names = {
        (one.group_id, one.instance): (one.group, one.instance_name)
        for one in after.readers
    }
    head = seen.head.head if seen.head else None
    for row in seen.readers:
        unknown = f"with id {row.group_id}", row.instance
        where = _named(*names.get((row.group_id, row.instance), unknown))
        if row.committed < 0:
            yield Finding(
                "committed_below", where, f"the committed offset is {row.committed}"
            )
        elif head is not None and row.committed > head:
            what = f"the committed offset is {row.committed}, the log end offset {head}"
            yield Finding("committed_above", where, what, head, row.committed)
    rows = {(row.group_id, row.instance): row for row in seen.readers}
    known = {reader.subscription_id for reader in before.readers}
    for reader in after.readers:
        if reader.subscription_id in known:
            yield from _of_reader(reader, rows.get((reader.group_id, reader.instance)))


def _of_reader(reader: ExpectedReader, row: ReaderRow | None) -> Judged:
    where = _named(reader.group, reader.instance_name)
    if reader.epoch is None:
        yield Finding(
            "position_missing", where, "there is no row for this queue in metadata"
        )
    if row is None:
        if reader.required:
            yield Finding("reader_missing", where, "there is no reader row on the node")
    elif row.epoch < reader.base_epoch:
        what = f"the reader row belongs to an earlier subscription (epoch {row.epoch})"
        yield Finding("reader_missing", where, what)
    elif reader.epoch is not None and row.epoch > reader.epoch:
        what = f"the node has epoch {row.epoch}, metadata {reader.epoch}"
        # A reset takes the owner away and raises the node's epoch first; the next acquire
        # tells metadata.
        yield (
            Finding("epoch_ahead", where, what)
            if row.owner
            else f"{where}: {what}, after a reset"
        )


def _named(group: str, instance: str) -> str:
    return f"group {group}, instance {instance}" if instance else f"group {group}"
