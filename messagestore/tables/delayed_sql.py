"""Statements for delayed messages. delivery_sql.py moves them into their queues when they
are due.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from messagestore.engine import db_errors
from messagestore.engine.messages import NewMessage, headers_text
from messagestore.engine.mysql_session import MySqlSession, Session
from messagestore.engine.sqlite_session import SqliteSession
from messagestore.tables.shapes import (
    DelayedBatch,
    DelayedRow,
    DueRow,
    Leaving,
    StoredDelays,
)
from messagestore.tables.sql_steps import fetch_rows, id_list, most_row_bytes, step
from messagestore.tables.statements import load
from metadata.errors import TooLarge
from metadata.rules.nodes import Engine

MOST_WAITING = 1_000_000  # more delayed messages of a node are not counted


def insert_delayed(
    session: Session, *, queue: int, node_epoch: int, batch: DelayedBatch
) -> StoredDelays:
    """Store delayed messages in a single transaction, if their queue is open.

    Raises `db_errors.Refused` if it is not, `db_errors.Duplicate` if the batch id is stored
    already, TooLarge if the messages do not fit one packet together, and other errors of
    the database.
    """
    if isinstance(session, SqliteSession):
        return _insert_sqlite(session, queue, node_epoch, batch)
    assert isinstance(session, MySqlSession)  # noqa: S101 - there are two engines
    columns = {
        "batch_id": batch.batch_id,
        "digest": batch.digest,
        "message_count": len(batch.rows),
    }
    rows = b",".join(
        _literal_row(session, batch, index) for index in range(len(batch.rows))
    )
    # One INSERT numbers them in order, so it is not split.
    if len(rows) > most_row_bytes(session):
        raise TooLarge(
            f"{len(batch.rows)} delayed messages of {len(rows)} bytes do not fit the node's "
            f"max_allowed_packet of {session.max_packet}: send fewer at once."
        )
    steps = (
        step(session, "delay_open", queue=queue, node_epoch=node_epoch),
        step(session, "delay_rows", rows=rows),
        step(session, "delay_close", **columns),
    )
    first, stored_at_ms = session.transact(*steps)[-1].rows[0]
    return StoredDelays(int(first), batch.digest, int(stored_at_ms))


def _literal_row(session: MySqlSession, batch: DelayedBatch, index: int) -> bytes:
    row = batch.rows[index]
    message = row.message
    due = b"@t + INTERVAL %d MICROSECOND" % (1000 * (message.delay_ms or 0))
    if message.deliver_at_ms is not None:
        due = b"'1970-01-01' + INTERVAL %d MICROSECOND" % (1000 * message.deliver_at_ms)
    values = (
        int(row.by_key),
        row.known_as,
        batch.batch_id,
        index,
        *_text_columns(message),
        message.body,
        message.trace_id,
        batch.producer,
    )
    literals = [
        b"@q",
        due,
        *map(session.literal, values),
        b"@t",
        session.literal(row.attempt),
        session.literal(row.origin),
    ]
    return b"(" + b",".join(literals) + b")"


def _text_columns(message: NewMessage) -> tuple[str | None, str | None, str | None]:
    return message.key, message.tag, headers_text(message.headers)


def _insert_sqlite(
    session: SqliteSession, queue: int, node_epoch: int, batch: DelayedBatch
) -> StoredDelays:
    statements = load(Engine.SQLITE)
    with session.transaction() as database:
        head = {"queue": queue, "node_epoch": node_epoch}
        head_row = database.execute(statements["delay_head"].text, head).fetchone()
        if head_row is None:
            raise db_errors.Refused("The queue is closed or has another epoch.")
        stored_at_ms = int(head_row[0])
        rows = (
            (
                queue,
                due_at_ms(row.message, stored_at_ms),
                row.by_key,
                row.known_as,
                batch.batch_id,
                index,
                *_text_columns(row.message),
                row.message.body,
                row.message.trace_id,
                batch.producer,
                stored_at_ms,
                row.attempt,
                row.origin,
            )
            for index, row in enumerate(batch.rows)
        )
        database.executemany(statements["delay_rows"].text, rows)
        columns = {
            "batch_id": batch.batch_id,
            "digest": batch.digest,
            "message_count": len(batch.rows),
            "stored_at": stored_at_ms,
        }
        database.execute(statements["delay_batch"].text, columns)
        first, *_ = database.execute(
            statements["select_delayed_batch"].text, columns
        ).fetchone()
    return StoredDelays(int(first), batch.digest, stored_at_ms)


def due_at_ms(message: NewMessage, stored_at_ms: int) -> int:
    """Return when a delayed message is due, in ms since 1970 UTC by its node's clock."""
    if message.deliver_at_ms is not None:
        return message.deliver_at_ms
    return stored_at_ms + (message.delay_ms or 0)


def find_delayed_batch(session: Session, *, batch_id: bytes) -> StoredDelays | None:
    """Return where a batch of delayed messages was stored, None if the batch id is unknown.

    Also finds a batch whose messages were moved or recalled since.
    """
    rows = session.run(step(session, "select_delayed_batch", batch_id=batch_id))[-1].rows
    if not rows:
        return None
    # Found by the record, or by the rows themselves if the record has expired.
    first, digest, stored_at_ms = rows[0]
    return StoredDelays(int(first), digest, int(stored_at_ms))


def read_delayed_queues(session: Session) -> dict[int, int]:
    """Return {queue: ms until its first delayed message is due}. 0 or less if one is due."""
    return {
        queue: int(due_in_ms)
        for queue, due_in_ms in fetch_rows(session, "select_delayed_queues")
    }


def list_due(session: Session, *, queue: int, most: int) -> list[DueRow]:
    """Return delayed rows of a queue that are due, in the order of their times."""
    return [
        DueRow(*row) for row in fetch_rows(session, "select_due", queue=queue, most=most)
    ]


def read_delayed(session: Session, *, rows: Sequence[int]) -> list[DelayedRow]:
    """Return those of some rows that still wait, by row id."""
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
    """Return the first delayed messages of some queues with row ids above `after`, by row
    id.

    At most `most`, and until their bodies reach `most_bytes`.
    """
    # One indexed query for each queue, merged by id: a single query over all of them would
    # sort every waiting row.
    steps = [
        step(session, "select_delayed_ids", queue=queue, after=after, most=most)
        for queue in queues
    ]
    results = session.run(*steps) if steps else []
    row_ids: list[int] = []
    size = 0
    for row, row_size in islice(heapq.merge(*(result.rows for result in results)), most):
        if size >= most_bytes:
            break
        row_ids.append(row)
        size += row_size
    return read_delayed(session, rows=row_ids)


class DelayedCounts(NamedTuple):
    """Number of row ids assigned on a node so far, and of messages that still wait."""

    given: int
    waiting: int


def read_counts(session: Session) -> DelayedCounts:
    """Count the delayed messages of a node; those that wait are counted up to MOST_WAITING.

    Return zeros if the node has no such table.
    """
    try:
        id_result, count_result = session.run(
            step(session, "select_delayed_counts", most=MOST_WAITING)
        )
    except db_errors.Final:
        return DelayedCounts(0, 0)
    return DelayedCounts(
        int(id_result.rows[0][0]) if id_result.rows else 0, int(count_result.rows[0][0])
    )


def raise_ids(session: Session, *, above: int) -> None:
    """Make the node assign only row ids above a bound. It has no effect if they are above
    it already.
    """
    session.run(step(session, "raise_delayed_ids", next_id=above + 1))


def count_delayed(session: Session, *, queues: Sequence[int], most: int) -> int:
    """Count the delayed rows of some queues, up to `most`."""
    return (
        int(fetch_rows(session, "count_delayed", queues=id_list(queues), most=most)[0][0])
        if queues
        else 0
    )


def retarget_delayed(session: Session, *, row: int, queue: int, target: int) -> bool:
    """Change the queue that a row waits for. Return False if it no longer waits for
    `queue`.
    """
    change = step(session, "retarget_delayed", row=row, queue=queue, target=target)
    return session.transact(change)[0].matched > 0


def leave_delayed(
    session: Session, *, leaving: Leaving, message_count: int, also_due: bool
) -> bool:
    """Delete a delayed row and record its fate. Return False if the row did not exist.

    `message_count` is 1 if the message was stored elsewhere, 0 if it was recalled. Unless
    `also_due`, a row that is due stays, because it may be on its way to another node.
    """
    # A record needs a digest, which a repeat is compared with. No client repeats this send.
    columns = {**leaving._asdict(), "message_count": message_count, "digest": bytes(16)}
    deleted, _ = session.transact(
        step(session, "leave_delayed", **columns, also_due=int(also_due))
    )
    return deleted.matched > 0


def delete_queue_delayed(session: Session, *, queue: int, most: int) -> int:
    """Delete rows that wait for a queue, at most `most`. Return how many."""
    return session.transact(step(session, "delete_queue_delayed", queue=queue, most=most))[
        0
    ].matched


def retarget_queue_delayed(session: Session, *, queue: int, target: int, most: int) -> int:
    """Change the queue of rows that wait for one, at most `most`. Return how many."""
    change = step(session, "retarget_queue_delayed", queue=queue, target=target, most=most)
    return session.transact(change)[0].matched
