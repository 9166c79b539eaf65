"""Statements for failures: the fence of the reporting member, the failed messages, and
records of copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from messagestore.engine.mysql_session import Session
from messagestore.tables.sql_steps import (
    fetch_rows,
    id_list,
    message_table,
    step,
    up_to_bytes,
)

# In `sent_batch` the record of a dead letter has this instead of a queue id. The record of
# a delayed message has 0.
DEAD = -1


class Fence(NamedTuple):
    """A queue and its reader row, which decide who may report failures.

    `now_ms` is the node's clock.
    """

    queue: int
    head: int
    low: int
    epoch: int
    owner: str
    reset_count: int
    now_ms: int


class FailingRow(NamedTuple):
    """A message whose handler failed, with all columns. The body has the index that it has
    in a StoredRow.
    """

    offset: int
    key: str | None
    tag: str | None
    headers: str | None
    body: bytes
    trace_id: str | None
    stored_at_ms: int
    attempt: int
    origin: str | None
    producer: str


class StoredCopy(NamedTuple):
    """Record of a copy: whether it is a dead letter, and when it was stored."""

    dead: bool
    stored_at_ms: int


def read_fences(
    session: Session, *, group_id: int, queues: Sequence[int]
) -> dict[int, Fence]:
    """Return {queue: fence} of those queues in which the group has a reader row."""
    rows = fetch_rows(session, "select_fences", group_id=group_id, queues=id_list(queues))
    return {row[0]: Fence(*row) for row in rows}


def select_failing(
    session: Session, *, queue: int, offsets: Sequence[int], most_bytes: int
) -> list[FailingRow]:
    """Return the existing messages at some offsets, in order, until their bodies reach
    `most_bytes`.
    """
    select = step(
        session, "select_failing", table=message_table(queue), offsets=id_list(offsets)
    )
    (result,) = session.run(select, count_fitting=up_to_bytes(most_bytes))
    return [FailingRow(*row) for row in result.rows]


class WaitingRow(NamedTuple):
    """A copy that waits until it is due. `size` is bytes of body and headers."""

    id: int
    queue: int
    due_at_ms: int
    attempt: int
    origin: str | None
    key: str | None
    tag: str | None
    size: int


def count_waiting(session: Session, *, queues: Sequence[int]) -> dict[int, int]:
    """Return {queue: number of messages that wait for it}, without queues that have none."""
    return (
        dict(fetch_rows(session, "count_waiting", queues=id_list(queues))) if queues else {}
    )


def list_waiting(session: Session, *, queues: Sequence[int], most: int) -> list[WaitingRow]:
    """Return at most `most` messages that wait for some queues, by due time."""
    rows = (
        fetch_rows(session, "list_waiting", queues=id_list(queues), most=most)
        if queues
        else ()
    )
    return [WaitingRow(*row) for row in rows]


class CopyPlace(NamedTuple):
    """Record of a stored copy.

    If `queue` is 0, `first_offset` is its first row in `delayed_message`, else its offset.
    `message_count` is 0 for a delayed message that was recalled.
    """

    queue: int
    first_offset: int
    message_count: int
    stored_at_ms: int


class WaitingCopy(NamedTuple):
    """A copy that waits in `delayed_message`."""

    row: int
    due_at_ms: int
    attempt: int
    origin: str | None


def literal_batches(batches: Sequence[bytes]) -> str:
    """Return batch ids as the inside of an IN (…)."""
    return ",".join(f"X'{batch.hex()}'" for batch in batches)


def read_copy_places(session: Session, *, batches: str) -> dict[bytes, CopyPlace]:
    """Return the records of copies, by batch id. Records are kept for two days."""
    rows = fetch_rows(session, "select_batch_places", batches=batches)
    return {row[0]: CopyPlace(*row[1:]) for row in rows}


def read_waiting_copies(session: Session, *, batches: str) -> dict[bytes, WaitingCopy]:
    """Return the copies that wait until they are due, by batch id."""
    rows = fetch_rows(session, "select_waiting_copies", batches=batches)
    return {row[0]: WaitingCopy(*row[1:]) for row in rows}


def find_copies(session: Session, *, batches: Sequence[bytes]) -> dict[bytes, StoredCopy]:
    """Return the records of those copies that are stored on this node, by batch id."""
    if not batches:
        return {}
    # A copy's id follows from the failed message, so a repeated report finds its record.
    rows = fetch_rows(session, "select_stored_copies", batches=literal_batches(batches))
    return {
        batch: StoredCopy(queue == DEAD, stored_at_ms)
        for batch, queue, stored_at_ms in rows
    }
