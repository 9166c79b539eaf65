"""Verbs on failures: who may report one, the messages that are copied, and what is
remembered of copies.
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

# stands for the queue where `sent_batch` remembers a dead message; 0 for one that waits or
# waited
DEAD = -1


class Fence(NamedTuple):
    """A queue and its reader row: who may report failures; `now_ms` by the node's clock."""

    queue: int
    head: int
    low: int
    epoch: int
    owner: str
    reset_count: int
    now_ms: int


class FailingRow(NamedTuple):
    """A message whose handler failed, all of it; its body stands where that of a StoredRow
    does.
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
    """Record of a copy: whether the message was dead, and when that was stored."""

    dead: bool
    stored_at_ms: int


def read_fences(
    session: Session, *, group_id: int, queues: Sequence[int]
) -> dict[int, Fence]:
    """{queue: fence} of those queues in which the group has a place."""
    rows = fetch_rows(session, "select_fences", group_id=group_id, queues=id_list(queues))
    return {row[0]: Fence(*row) for row in rows}


def select_failing(
    session: Session, *, queue: int, offsets: Sequence[int], most_bytes: int
) -> list[FailingRow]:
    """The messages at some offsets that are there, by offset, until their bodies reach so
    many bytes.
    """
    select = step(
        session, "select_failing", table=message_table(queue), offsets=id_list(offsets)
    )
    (result,) = session.run(select, count_fitting=up_to_bytes(most_bytes))
    return [FailingRow(*row) for row in result.rows]


class WaitingRow(NamedTuple):
    """A copy that waits for its time."""

    id: int
    queue: int
    due_at_ms: int
    attempt: int
    origin: str | None
    key: str | None
    tag: str | None
    size: int


def count_waiting(session: Session, *, queues: Sequence[int]) -> dict[int, int]:
    """{queue: how many messages wait for it}; queues for which none does are left out."""
    return (
        dict(fetch_rows(session, "count_waiting", queues=id_list(queues))) if queues else {}
    )


def list_waiting(session: Session, *, queues: Sequence[int], most: int) -> list[WaitingRow]:
    """At most so many messages that wait for some queues, by the time when they are due."""
    rows = (
        fetch_rows(session, "list_waiting", queues=id_list(queues), most=most)
        if queues
        else ()
    )
    return [WaitingRow(*row) for row in rows]


class CopyPlace(NamedTuple):
    """Record of a stored copy: its first row in `delayed_message` if `queue` is 0, else its
    offset.

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
    """Write batch ids as the inside of an IN (…)."""
    return ",".join(f"X'{batch.hex()}'" for batch in batches)


def read_copy_places(session: Session, *, batches: str) -> dict[bytes, CopyPlace]:
    """Return the records of copies by batch id; they are kept for two days."""
    rows = fetch_rows(session, "select_batch_places", batches=batches)
    return {row[0]: CopyPlace(*row[1:]) for row in rows}


def read_waiting_copies(session: Session, *, batches: str) -> dict[bytes, WaitingCopy]:
    """Return the copies that wait for their time by batch id."""
    rows = fetch_rows(session, "select_waiting_copies", batches=batches)
    return {row[0]: WaitingCopy(*row[1:]) for row in rows}


def find_copies(session: Session, *, batches: Sequence[bytes]) -> dict[bytes, StoredCopy]:
    """{batch id: what is remembered} of those copies that were stored on this node."""
    if not batches:
        return {}
    rows = fetch_rows(session, "select_stored_copies", batches=literal_batches(batches))
    return {
        batch: StoredCopy(queue == DEAD, stored_at_ms)
        for batch, queue, stored_at_ms in rows
    }
