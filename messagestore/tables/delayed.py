"""Verbs on messages that wait for their time: storing them, and what is remembered of that."""

from __future__ import annotations

from collections.abc import Iterator

from messagestore import faults
from messagestore.messages import NewMessage, headers_text
from messagestore.sessions import MySqlSession, Session
from messagestore.sqlite_sessions import SqliteSession
from messagestore.statements import load
from messagestore.tables.running import rows_of, step
from messagestore.tables.shapes import DelayedBatch, StoredDelays
from metadata.errors import TooLarge


def insert_delayed(session: Session, *, queue: int, node_epoch: int, batch: DelayedBatch) -> StoredDelays:
    """Stores messages that wait for their time, all or nothing, if their queue is open.

    Raises `faults.Refused` when it is not, `faults.Duplicate` when the batch id is known, TooLarge when they
    do not fit one packet together, and the other faults as they are.
    """
    if isinstance(session, MySqlSession):
        return _insert_mysql(session, queue, node_epoch, batch)
    assert isinstance(session, SqliteSession)  # noqa: S101 - there are two engines
    return _insert_sqlite(session, queue, node_epoch, batch)


def _insert_mysql(session: MySqlSession, queue: int, node_epoch: int, batch: DelayedBatch) -> StoredDelays:
    known = {"batch_id": batch.batch_id, "digest": batch.digest, "message_count": len(batch.rows)}
    rows = b",".join(_literal_row(session, batch, place) for place in range(len(batch.rows)))
    text = b";".join(
        session.render(one)
        for one in (
            step(session, "delay_open", queue=queue, node_epoch=node_epoch),
            step(session, "delay_rows", rows=rows),
            step(session, "delay_close", **known),
        )
    )
    if len(text) > session.max_packet:
        raise TooLarge(
            f"{len(batch.rows)} delayed messages of {len(text)} bytes do not fit the node's "
            f"max_allowed_packet of {session.max_packet}: send fewer at once."
        )
    results = session.send(text)
    if len(results) != 7:
        raise faults.Ambiguous(f"{len(results)} results came back for 7 statements")
    first, stored_at_ms = results[-1].rows[0]
    return StoredDelays(int(first), batch.digest, int(stored_at_ms))


def _literal_row(session: MySqlSession, batch: DelayedBatch, place: int) -> bytes:
    row = batch.rows[place]
    message = row.message
    due = b"@t + INTERVAL %d MICROSECOND" % (1000 * (message.delay_ms or 0))
    if message.deliver_at_ms is not None:
        due = b"'1970-01-01' + INTERVAL %d MICROSECOND" % (1000 * message.deliver_at_ms)
    before = (int(row.by_key), row.known_as, batch.batch_id, place, *_columns(message), message.body)
    after = (message.trace_id, batch.producer)
    last = (row.attempt, row.origin)
    values = [b"@q", due, *map(session.literal, (*before, *after)), b"@t", *map(session.literal, last)]
    return b"(" + b",".join(values) + b")"


def _columns(message: NewMessage) -> tuple[str | None, str | None, str | None]:
    return message.key, message.tag, headers_text(message.headers)


def _insert_sqlite(session: SqliteSession, queue: int, node_epoch: int, batch: DelayedBatch) -> StoredDelays:
    statements = load("sqlite")
    with session.transaction() as database:
        head = {"queue": queue, "node_epoch": node_epoch}
        row = database.execute(statements["delay_head"].text, head).fetchone()
        if row is None:
            raise faults.Refused("The head row refused the write.")
        stored_at_ms = int(row[0])
        database.executemany(statements["delay_rows"].text, _values(queue, batch, stored_at_ms))
        known = {
            "batch_id": batch.batch_id,
            "digest": batch.digest,
            "message_count": len(batch.rows),
            "stored_at": stored_at_ms,
        }
        database.execute(statements["delay_batch"].text, known)
    found = find_delayed_batch(session, batch_id=batch.batch_id)
    assert found is not None  # noqa: S101 - it was just written
    return found


def _values(queue: int, batch: DelayedBatch, stored_at_ms: int) -> Iterator[tuple[object, ...]]:
    for place, row in enumerate(batch.rows):
        message = row.message
        before = (queue, due_at_ms(message, stored_at_ms), row.by_key, row.known_as, batch.batch_id, place)
        content = (*_columns(message), message.body, message.trace_id, batch.producer)
        yield (*before, *content, stored_at_ms, row.attempt, row.origin)


def due_at_ms(message: NewMessage, stored_at_ms: int) -> int:
    """When a delayed message comes into its queue; ms since 1970 UTC by its node's clock."""
    if message.deliver_at_ms is not None:
        return message.deliver_at_ms
    return stored_at_ms + (message.delay_ms or 0)


def find_delayed_batch(session: Session, *, batch_id: bytes) -> StoredDelays | None:
    """Where a batch of delayed messages was put, whatever became of them since; None if it is not known."""
    rows = rows_of(session, "select_delayed_batch", batch_id=batch_id)
    if not rows:
        return None
    first, digest, stored_at_ms = rows[0]
    return StoredDelays(int(first), digest, int(stored_at_ms))
