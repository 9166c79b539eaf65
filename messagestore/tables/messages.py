"""Verbs on messages and on the batches they came in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from messagestore import faults
from messagestore.messages import NewMessage, StoredMessage, headers_text
from messagestore.sessions import Fits, MySqlSession, Result, Session, SqliteSession, Step
from messagestore.statements import load
from messagestore.tables.running import ids, key_of, message_table, rows_of, step
from messagestore.tables.shapes import Position, ReaderKey, SentBatch
from metadata.errors import TooLarge

_BODY = 4  # the column of `select_messages`


def insert_messages(
    session: Session,
    *,
    queue: int,
    node_epoch: int,
    batch_id: bytes,
    digest: bytes,
    messages: Sequence[NewMessage],
    producer: str,
) -> int:
    """Stores a batch at the head of a queue, all or nothing; the offset of its first message.

    Raises `faults.Refused` when the head row does not allow it, `faults.Duplicate` when the batch id
    is known (or the head too low), and the other faults as they are.
    """
    batch = {
        "queue": queue,
        "node_epoch": node_epoch,
        "batch_id": batch_id,
        "digest": digest,
        "message_count": len(messages),
        "table": message_table(queue),
    }
    if isinstance(session, MySqlSession):
        return _insert_mysql(session, batch, messages, producer)
    assert isinstance(session, SqliteSession)  # noqa: S101 - there are two engines
    return _insert_sqlite(session, batch, messages, producer)


def _insert_mysql(
    session: MySqlSession, batch: dict[str, object], messages: Sequence[NewMessage], producer: str
) -> int:
    opening = session.render(step(session, "publish_open", **batch))
    closing = session.render(step(session, "publish_close"))
    inserts = _inserts(session, batch, messages, producer)
    whole = b";".join([opening, *inserts, closing])
    if len(inserts) == 1 and len(whole) <= session.max_packet:
        return _first_offset(session.send(whole), statements=8)
    # Too large for one packet: the same transaction in several strings; any error in between ends it.
    for text in (opening, *inserts):
        session.send(text, ends=False)
    return _first_offset(session.send(closing), statements=2)


def _first_offset(results: list[Result], *, statements: int) -> int:
    if len(results) != statements:
        raise faults.Ambiguous(f"{len(results)} results came back for {statements} statements")
    return int(results[-1].rows[0][0])


def _inserts(
    session: MySqlSession, batch: dict[str, object], messages: Sequence[NewMessage], producer: str
) -> list[bytes]:
    """The INSERT statements of a batch, each within the server's `max_allowed_packet`."""
    limit = session.max_packet - 10_000  # leaves room for everything around the rows
    chunks: list[list[bytes]] = [[]]
    size = 0
    for row in _literal_rows(session, messages, producer):
        if len(row) > limit:
            raise TooLarge(
                f"A message does not fit the node's max_allowed_packet of {session.max_packet} bytes."
            )
        if size + len(row) > limit:
            chunks.append([])
            size = 0
        chunks[-1].append(row)
        size += len(row) + 1
    return [session.render(step(session, "publish_rows", **batch, rows=b",".join(rows))) for rows in chunks]


def _literal_rows(session: MySqlSession, messages: Sequence[NewMessage], producer: str) -> Iterator[bytes]:
    quote = session.quote
    source = quote(producer.encode())
    for index, message in enumerate(messages):
        key = b"NULL" if message.key is None else quote(message.key.encode())
        tag = b"NULL" if message.tag is None else quote(message.tag.encode())
        headers = quote(headers_text(message.headers).encode()) if message.headers else b"NULL"  # type: ignore[union-attr]
        trace = b"NULL" if message.trace_id is None else quote(message.trace_id.encode())
        yield b"(@b+%d,%b,%b,%b,_binary%b,%b,%b,@t)" % (
            index, key, tag, headers, quote(message.body), trace, source,
        )  # fmt: skip


def _insert_sqlite(
    session: SqliteSession, batch: dict[str, object], messages: Sequence[NewMessage], producer: str
) -> int:
    statements = load("sqlite")
    with session.transaction() as database:
        row = database.execute(statements["publish_head"].text, batch).fetchone()
        if row is None:
            raise faults.Refused("The head row refused the write.")
        first, stored_at = row
        values = {**batch, "first_offset": first, "stored_at": stored_at}
        database.execute(statements["publish_raise"].text, values)
        database.execute(statements["publish_batch"].text, values)
        (insert,) = statements["publish_rows"].single(batch)
        database.executemany(
            insert,
            (
                (
                    first + index,
                    m.key,
                    m.tag,
                    headers_text(m.headers),
                    m.body,
                    m.trace_id,
                    producer,
                    stored_at,
                )
                for index, m in enumerate(messages)
            ),
        )
    return int(first)


def find_batch(session: Session, *, batch_id: bytes) -> SentBatch | None:
    """What is remembered of a batch id, or None."""
    rows = rows_of(session, "select_sent_batch", batch_id=batch_id)
    return SentBatch(*rows[0]) if rows else None


def delete_old_batches(session: Session, *, hours: int, most: int) -> int:
    """Forgets batches stored more than some hours ago, the oldest first, at most so many; how many."""
    return session.transact(step(session, "delete_old_batches", hours=hours, most=most))[0].matched


def select_from(
    session: Session, *, queue: int, first: int, end: int, most_bytes: int
) -> list[StoredMessage]:
    """The messages at offsets first … end-1 that are there, until their bodies reach `most_bytes`."""
    (result,) = session.run(_select(session, queue, first, end), fits=_until(most_bytes))
    return [_stored(queue, row) for row in result.rows]


def select_owned(
    session: Session, *, reader: ReaderKey, first: int, end: int, most_bytes: int
) -> tuple[Position | None, list[StoredMessage]]:
    """A reader's position, then the messages, in one round trip: rows never older than the head."""
    positions, messages = session.run(
        step(session, "select_positions", **key_of(reader), queues=ids([reader.queue])),
        _select(session, reader.queue, first, end),
        fits=_until(most_bytes),
    )
    position = Position(*positions.rows[0]) if positions.rows else None
    return position, [_stored(reader.queue, row) for row in messages.rows]


def _select(session: Session, queue: int, first: int, end: int) -> Step:
    return step(session, "select_messages", table=message_table(queue), first_offset=first, end_offset=end)


def _until(most_bytes: int) -> Fits:
    """Takes rows of messages until their bodies have reached so many bytes: the last may exceed them."""
    taken = 0

    def fits(row: tuple[Any, ...]) -> bool:
        nonlocal taken
        fit = taken < most_bytes
        taken += len(row[_BODY])
        return fit

    return fits


def _stored(queue: int, row: tuple[Any, ...]) -> StoredMessage:
    offset, key, tag, headers, body, trace_id, stored_at_ms, attempt = row
    parsed = msgspec.json.decode(headers) if headers else None
    return StoredMessage(queue, offset, key, tag, parsed, body, trace_id, int(stored_at_ms), attempt)


def stored_at_ms(session: Session, *, queue: int, offset: int) -> int | None:
    """When the first message at or above an offset was stored, or None above the last."""
    rows = rows_of(session, "select_stored_at", table=message_table(queue), first_offset=offset)
    return int(rows[0][0]) if rows else None
