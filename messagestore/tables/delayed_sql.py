"""Verbs on messages that wait for their time; `moving` brings them into their queues."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from messagestore.engine import db_errors
from messagestore.engine.messages import NewMessage, headers_text
from messagestore.engine.mysql_session import MySqlSession, Session, count_statements
from messagestore.engine.sqlite_session import SqliteSession
from messagestore.engine.statements import load
from messagestore.tables.shapes import (
    DelayedBatch,
    DelayedRow,
    DueRow,
    Leaving,
    StoredDelays,
)
from messagestore.tables.sql_steps import fetch_rows, id_list, step
from metadata.errors import TooLarge

MOST_WAITING = 1_000_000  # delayed messages of a node that are count_statements


def insert_delayed(
    session: Session, *, queue: int, node_epoch: int, batch: DelayedBatch
) -> StoredDelays:
    """Store messages that wait for their time, all or nothing, if their queue is open.

    Raises `db_errors.Refused` when it is not, `db_errors.Duplicate` when the batch id is
    known, TooLarge when they do not fit one packet together, and the other faults as they
    are.
    """
    if isinstance(session, MySqlSession):
        return _insert_mysql(session, queue, node_epoch, batch)
    assert isinstance(session, SqliteSession)  # noqa: S101 - there are two engines
    return _insert_sqlite(session, queue, node_epoch, batch)


def _insert_mysql(
    session: MySqlSession, queue: int, node_epoch: int, batch: DelayedBatch
) -> StoredDelays:
    known = {
        "batch_id": batch.batch_id,
        "digest": batch.digest,
        "message_count": len(batch.rows),
    }
    rows = b",".join(
        _literal_row(session, batch, place) for place in range(len(batch.rows))
    )
    steps = (
        step(session, "delay_open", queue=queue, node_epoch=node_epoch),
        step(session, "delay_rows", rows=rows),
        step(session, "delay_close", **known),
    )
    text = b";".join(map(session.render, steps))
    if len(text) > session.max_packet:
        raise TooLarge(
            f"{len(batch.rows)} delayed messages of {len(text)} bytes do not fit the node's "
            f"max_allowed_packet of {session.max_packet}: send fewer at once."
        )
    results = session.send(text, statements=count_statements(steps))
    first, stored_at_ms = results[-1].rows[0]
    return StoredDelays(int(first), batch.digest, int(stored_at_ms))


def _literal_row(session: MySqlSession, batch: DelayedBatch, place: int) -> bytes:
    row = batch.rows[place]
    message = row.message
    due = b"@t + INTERVAL %d MICROSECOND" % (1000 * (message.delay_ms or 0))
    if message.deliver_at_ms is not None:
        due = b"'1970-01-01' + INTERVAL %d MICROSECOND" % (1000 * message.deliver_at_ms)
    before = (
        int(row.by_key),
        row.known_as,
        batch.batch_id,
        place,
        *_columns(message),
        message.body,
    )
    after = (message.trace_id, batch.producer)
    last = (row.attempt, row.origin)
    values = [
        b"@q",
        due,
        *map(session.literal, (*before, *after)),
        b"@t",
        *map(session.literal, last),
    ]
    return b"(" + b",".join(values) + b")"


def _columns(message: NewMessage) -> tuple[str | None, str | None, str | None]:
    return message.key, message.tag, headers_text(message.headers)


def _insert_sqlite(
    session: SqliteSession, queue: int, node_epoch: int, batch: DelayedBatch
) -> StoredDelays:
    statements = load("sqlite")
    with session.transaction() as database:
        head = {"queue": queue, "node_epoch": node_epoch}
        row = database.execute(statements["delay_head"].text, head).fetchone()
        if row is None:
            raise db_errors.Refused("The queue is closed or has another epoch.")
        stored_at_ms = int(row[0])
        database.executemany(
            statements["delay_rows"].text, _values(queue, batch, stored_at_ms)
        )
        known = {
            "batch_id": batch.batch_id,
            "digest": batch.digest,
            "message_count": len(batch.rows),
            "stored_at": stored_at_ms,
        }
        database.execute(statements["delay_batch"].text, known)
        first, *_ = database.execute(
            statements["select_delayed_batch"].text, known
        ).fetchone()
    return StoredDelays(int(first), batch.digest, stored_at_ms)


def _values(
    queue: int, batch: DelayedBatch, stored_at_ms: int
) -> Iterator[tuple[object, ...]]:
    for place, row in enumerate(batch.rows):
        message = row.message
        before = (
            queue,
            due_at_ms(message, stored_at_ms),
            row.by_key,
            row.known_as,
            batch.batch_id,
            place,
        )
        content = (*_columns(message), message.body, message.trace_id, batch.producer)
        yield (*before, *content, stored_at_ms, row.attempt, row.origin)


def due_at_ms(message: NewMessage, stored_at_ms: int) -> int:
    """Time at which a delayed message comes into its queue; ms since 1970 UTC by its node's
    clock.
    """
    if message.deliver_at_ms is not None:
        return message.deliver_at_ms
    return stored_at_ms + (message.delay_ms or 0)


def find_delayed_batch(session: Session, *, batch_id: bytes) -> StoredDelays | None:
    """Find where a batch of delayed messages was put, whatever became of them since; None
    if not known.
    """
    rows = session.run(step(session, "select_delayed_batch", batch_id=batch_id))[-1].rows
    if not rows:
        return None
    first, digest, stored_at_ms = rows[0]
    return StoredDelays(int(first), digest, int(stored_at_ms))


def read_delayed_queues(session: Session) -> dict[int, int]:
    """{queue: ms until the first of its delayed messages is due, 0 or less when it is}."""
    return {
        queue: int(due_in_ms)
        for queue, due_in_ms in fetch_rows(session, "select_delayed_queues")
    }


def list_due(session: Session, *, queue: int, most: int) -> list[DueRow]:
    """The rows of a queue that are due, in the order of their times."""
    return [
        DueRow(*row) for row in fetch_rows(session, "select_due", queue=queue, most=most)
    ]


def read_delayed(session: Session, *, rows: Sequence[int]) -> list[DelayedRow]:
    """Those of some rows that still wait, in order of their numbers."""
    return (
        [
            DelayedRow(*row)
            for row in fetch_rows(session, "select_delayed", rows=id_list(rows))
        ]
        if rows
        else []
    )


def list_delayed(
    session: Session, *, queues: Sequence[int], after: int, most: int, most_bytes: int
) -> list[DelayedRow]:
    """The first rows of some queues above a number, in order, until their bodies reach
    `most_bytes`.
    """
    steps = [
        step(session, "select_delayed_ids", queue=queue, after=after, most=most)
        for queue in queues
    ]
    results = session.run(*steps) if steps else []
    chosen: list[int] = []
    size = 0
    for row, length in islice(heapq.merge(*(result.rows for result in results)), most):
        if size >= most_bytes:
            break
        chosen.append(row)
        size += length
    return read_delayed(session, rows=chosen)


class DelayedCounts(NamedTuple):
    """How many ids were given to delayed messages of a node so far, and how many of the
    messages wait.
    """

    given: int
    waiting: int


def read_counts(session: Session) -> DelayedCounts:
    """Count the delayed messages of a node; counts up to MOST_WAITING that wait.

    Zeros for a database without their table.
    """
    try:
        given, waiting = session.run(
            step(session, "select_delayed_counts", most=MOST_WAITING)
        )
    except db_errors.Final:
        return DelayedCounts(0, 0)
    return DelayedCounts(
        int(given.rows[0][0]) if given.rows else 0, int(waiting.rows[0][0])
    )


def raise_ids(session: Session, *, above: int) -> None:
    """Give no delayed message an id up to a bound; ids that are above it go on."""
    session.run(step(session, "raise_delayed_ids", next_id=above + 1))


def count_delayed(session: Session, *, queues: Sequence[int], most: int) -> int:
    """Count the rows of some queues that wait; counts up to `most`."""
    return (
        int(fetch_rows(session, "count_delayed", queues=id_list(queues), most=most)[0][0])
        if queues
        else 0
    )


def retarget_delayed(session: Session, *, row: int, queue: int, target: int) -> bool:
    """Give a row that waits for a queue to another one; whether it still waited for that."""
    moved = step(session, "retarget_delayed", row=row, queue=queue, target=target)
    return session.transact(moved)[0].matched > 0


def leave_delayed(
    session: Session, *, leaving: Leaving, message_count: int, also_due: bool
) -> bool:
    """Delete a row and remember what became of it: 1 message elsewhere, or 0; whether it
    was there.

    Unless `also_due`, one that is due stays, because it may be on its way to another node.
    """
    known = {**leaving._asdict(), "message_count": message_count, "digest": bytes(16)}
    deleted, _ = session.transact(
        step(session, "leave_delayed", **known, also_due=int(also_due))
    )
    return deleted.matched > 0


def delete_queue_delayed(session: Session, *, queue: int, most: int) -> int:
    """Delete rows that wait for a queue, at most so many; how many."""
    return session.transact(step(session, "delete_queue_delayed", queue=queue, most=most))[
        0
    ].matched


def retarget_queue_delayed(session: Session, *, queue: int, target: int, most: int) -> int:
    """Give rows that wait for a queue to another one, at most so many; how many."""
    moved = step(session, "retarget_queue_delayed", queue=queue, target=target, most=most)
    return session.transact(moved)[0].matched
