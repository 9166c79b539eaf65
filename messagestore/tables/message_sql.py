"""Verbs on messages and on the batches they came in, and the rows of an INSERT."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, cast

from messagestore.engine import db_errors
from messagestore.engine.messages import (
    ROW_OFFSET,
    MessageSearch,
    NewMessage,
    StoredMessage,
    StoredRow,
    headers_text,
    parse_headers,
    stored_message,
)
from messagestore.engine.mysql_session import (
    MySqlSession,
    Result,
    Session,
    Step,
    escaped,
    quoted,
)
from messagestore.engine.sqlite_session import SqliteSession
from messagestore.engine.statements import load
from messagestore.tables.shapes import NewBatch, Position, ReaderKey, SentBatch
from messagestore.tables.sql_steps import (
    fetch_rows,
    id_list,
    message_table,
    reader_columns,
    step,
    text_list,
    up_to_bytes,
)
from metadata.errors import TooLarge
from metadata.grouping import chunks
from metadata.rules.groups.filters import EVERYTHING, MessageFilter

# what `publish_open` consists of
_OPENING = ("START TRANSACTION", "UPDATE", "SET", "INSERT")
_AT_ONCE = 100  # queues that are asked in one round trip


class _Send(TypedDict):
    queue: int
    node_epoch: int
    message_count: int
    table: str


def insert_messages(
    session: Session, *, queue: int, node_epoch: int, batches: Sequence[NewBatch]
) -> int:
    """Store batches one behind the other at the head of a queue, all or nothing; the first
    message's offset.

    Raises `db_errors.Refused` when the head row does not allow it, `db_errors.Duplicate`
    when a batch id is known (or the head too low), and the other faults as they are.
    """
    head: _Send = {
        "queue": queue,
        "node_epoch": node_epoch,
        "message_count": sum(len(batch.messages) for batch in batches),
        "table": message_table(queue),
    }
    if isinstance(session, MySqlSession):
        return _insert_mysql(session, head, batches)
    assert isinstance(session, SqliteSession)  # noqa: S101 - there are two engines
    return _insert_sqlite(session, head, batches)


def _insert_mysql(session: MySqlSession, head: _Send, batches: Sequence[NewBatch]) -> int:
    remembered = _batch_rows(session, head["queue"], batches)
    opening = session.render(step(session, "publish_open", **head, batches=remembered))
    closing = session.render(step(session, "publish_close"))
    inserts = _inserts(session, head, literal_rows(batches))
    whole = b";".join([opening, *inserts, closing])
    if len(inserts) == 1 and len(whole) <= session.max_packet:
        results = session.send(whole, statements=len(_OPENING) + 2)
    else:
        # Too large for one packet: the same transaction in several strings; any error in
        # between ends it.
        results = session.send(opening, statements=len(_OPENING), ends_transaction=False)
        for text in inserts:
            session.send(text, statements=1, ends_transaction=False)
        session.send(closing, statements=1)
    raised_to = results[_OPENING.index("UPDATE")].number
    # something between us and the server leaves it out
    if raised_to < head["message_count"]:
        raise db_errors.Ambiguous("It is stored, but the answer does not say where.")
    return raised_to - head["message_count"]


def _batch_rows(session: MySqlSession, queue: int, batches: Sequence[NewBatch]) -> bytes:
    """The rows of `sent_batch`, each batch's first offset behind those before it."""
    rows: list[bytes] = []
    before = 0
    for batch in batches:
        count = len(batch.messages)
        known = (
            session.literal(batch.batch_id),
            queue,
            before,
            count,
            session.literal(batch.digest),
        )
        rows.append(b"(%b,%d,@b+%d,%d,%b,@t)" % known)
        before += count
    return b",".join(rows)


def _inserts(session: MySqlSession, head: _Send, rows: list[bytes]) -> list[bytes]:
    """The INSERT statements of some rows, each within the server's `max_allowed_packet`."""
    limit = session.max_packet - 10_000  # leaves room for everything around the rows
    whole = b",".join(rows)
    if len(whole) <= limit:
        return [session.render(step(session, "publish_rows", **head, rows=whole))]
    chunks: list[list[bytes]] = [[]]
    size = 0
    for row in rows:
        if len(row) > limit:
            raise TooLarge(
                "A message does not fit the node's max_allowed_packet of "
                f"{session.max_packet} bytes."
            )
        if size + len(row) > limit:
            chunks.append([])
            size = 0
        chunks[-1].append(row)
        size += len(row) + 1
    return [
        session.render(step(session, "publish_rows", **head, rows=b",".join(rows)))
        for rows in chunks
    ]


def _insert_sqlite(session: SqliteSession, head: _Send, batches: Sequence[NewBatch]) -> int:
    statements = load("sqlite")
    with session.transaction() as database:
        row = database.execute(statements["publish_head"].text, head).fetchone()
        if row is None:
            raise db_errors.Refused("The queue is closed or has another epoch.")
        first, stored_at = row
        database.execute(statements["publish_raise"].text, {**head, "stored_at": stored_at})
        (insert,) = statements["publish_rows"].single(head)
        following = first
        for batch in batches:
            known = {
                **batch._asdict(),
                "queue": head["queue"],
                "first_offset": following,
                "message_count": len(batch.messages),
                "stored_at": stored_at,
            }
            database.execute(statements["publish_batch"].text, known)
            database.executemany(insert, _values(batch, following, stored_at))
            following += len(batch.messages)
    return int(first)


def _values(batch: NewBatch, first: int, stored_at: int) -> Iterator[tuple[object, ...]]:
    for offset, m in enumerate(batch.messages, first):
        headers = headers_text(m.headers)
        yield offset, m.key, m.tag, headers, m.body, m.trace_id, batch.producer, stored_at


def find_batch(session: Session, *, batch_id: bytes) -> SentBatch | None:
    rows = session.run(step(session, "select_sent_batch", batch_id=batch_id))[-1].rows
    return SentBatch(*rows[0]) if rows else None


def delete_old_batches(session: Session, *, hours: int, most: int) -> int:
    """Delete batches stored more than some hours ago, the oldest first, at most so many;
    return how many.
    """
    return session.transact(step(session, "delete_old_batches", hours=hours, most=most))[
        0
    ].matched


def select_messages(
    session: Session, *, queue: int, first: int, end: int, most_bytes: int
) -> list[StoredMessage]:
    """The messages at offsets first … end-1 that are there, until their bodies reach
    `most_bytes`.
    """
    rows = select_rows(session, queue=queue, first=first, end=end, most_bytes=most_bytes)
    return [stored_message(queue, row) for row in rows]


def select_rows(
    session: Session,
    *,
    queue: int,
    first: int,
    end: int,
    most_bytes: int,
    only: MessageFilter = EVERYTHING,
) -> list[StoredRow]:
    """The same as rows; see select_owned for `only`."""
    select = _select(session, queue, first=first, end=end, only=only)
    (result,) = session.run(select.step, count_fitting=up_to_bytes(most_bytes))
    return select.rows(result)


def select_copies(
    session: Session, *, queue: int, first: int, end: int, most_bytes: int
) -> tuple[list[StoredRow], Sequence[str | None]]:
    """The same of a failure topic's queue, and the origins of the rows."""
    span = {"first_offset": first, "end_offset": end}
    select = step(session, "select_copies", table=message_table(queue), **span)
    (result,) = session.run(select, count_fitting=up_to_bytes(most_bytes))
    return _split(result)


def search_range(
    session: Session,
    *,
    queue: int,
    bounds: tuple[int, int],
    wanted: MessageSearch,
    most: int,
    most_bytes: int,
) -> list[StoredMessage]:
    """At most so many messages at offsets first … end-1 that carry what is wanted; keep the
    range short.
    """
    values: dict[str, object] = {
        "first_offset": bounds[0],
        "end_offset": bounds[1],
        "most": most,
    }
    values |= {"msg_key": wanted.key, "tag": wanted.tag, "trace_id": wanted.trace_id}
    values["header_first"], values["header_later"] = wanted.header_texts()
    search = step(
        session,
        "search_messages",
        table=message_table(queue),
        **values,
        body_part=wanted.body_part,
    )
    (result,) = session.run(search, count_fitting=up_to_bytes(most_bytes))
    return [stored_message(queue, row) for row in _typed(result)]


def count_matching(
    session: Session, *, shares: Mapping[int, int], only: MessageFilter
) -> tuple[int, int]:
    """Count the last messages of some queues: those that are there, and those that a filter
    takes.

    `shares`: {queue: how many of its last ones are looked at}. Declared gaps and what
    retention took are passed over; a queue without a head row has none.
    """
    looked_at = matching = 0
    for queues in chunks(list(shares), _AT_ONCE):
        heads = session.run(
            *(step(session, "select_head", queue=queue) for queue in queues)
        )
        known = [
            (queue, row)
            for queue, result in zip(queues, heads, strict=True)
            for row in result.rows
        ]
        latest = [
            step(session, "select_latest_headers", **_range(queue, row), most=shares[queue])
            for queue, row in known
        ]
        for result in session.run(*latest) if latest else ():
            looked_at += len(result.rows)
            matching += sum(
                only.takes(tag, parse_headers(headers)) for tag, headers in result.rows
            )
    return looked_at, matching


def _range(queue: int, head_row: tuple[Any, ...]) -> dict[str, object]:
    head, low, *_ = head_row
    return {"table": message_table(queue), "first_offset": low, "end_offset": head}


def select_owned(
    session: Session,
    *,
    reader: ReaderKey,
    first: int,
    end: int,
    most_bytes: int,
    only: MessageFilter = EVERYTHING,
    most: int | None = None,
    beside: Sequence[int] = (),
    copies: bool = False,
) -> tuple[dict[int, Position], list[StoredRow], Sequence[str | None]]:
    """A reader's position, then the rows, in one round trip: rows never older than the
    head.

    The positions, {queue: position}, are those of the reader's queue and of the queues
    `beside` it.
    Rows of messages that `only` leaves out come without headers and body (None). A filter
    on headers takes one more statement and at most `most` messages: rows end before the
    next one. With
    `copies`, of a failure
    topic's queue, the last are the origins of the rows, and `only` is not looked at.
    """
    if copies:
        span = {"first_offset": first, "end_offset": end}
        select = _Select(
            step(session, "select_copies", table=message_table(reader.queue), **span)
        )
    else:
        select = _select(session, reader.queue, first=first, end=end, only=only, most=most)
    positions, messages = session.run(
        step(
            session,
            "select_positions",
            **reader_columns(reader),
            queues=id_list([reader.queue, *beside]),
        ),
        select.step,
        count_fitting=up_to_bytes(most_bytes),
    )
    found = {row[0]: Position(*row) for row in positions.rows}
    if not copies:
        return found, select.rows(messages), ()
    return found, *_split(messages)


def _split(result: Result) -> tuple[list[StoredRow], Sequence[str | None]]:
    """The rows of `select_copies`, and their origins."""
    return [cast("StoredRow", row[:-1]) for row in result.rows], [
        row[-1] for row in result.rows
    ]


def _typed(result: Result) -> list[StoredRow]:
    """The rows of `select_messages`: its columns are what a StoredRow says."""
    return cast("list[StoredRow]", result.rows)


class _Select(NamedTuple):
    """A statement for messages; `seen`: the offsets that a filter on headers has looked at,
    None without.
    """

    step: Step
    seen: Collection[int] | None = None

    def rows(self, result: Result) -> list[StoredRow]:
        """The rows that were found; on a replica more may have arrived since the look at
        the headers.
        """
        found = _typed(result)
        return (
            found
            if self.seen is None
            else [row for row in found if row[ROW_OFFSET] in self.seen]
        )


def _select(
    session: Session,
    queue: int,
    *,
    first: int,
    end: int,
    only: MessageFilter,
    most: int | None = None,
) -> _Select:
    values: dict[str, object] = {
        "table": message_table(queue),
        "first_offset": first,
        "end_offset": end,
    }
    if only.headers:
        looked = fetch_rows(session, "select_headers", **values)
        taken = [
            offset
            for offset, tag, headers in looked
            if only.takes(tag, parse_headers(headers))
        ]
        if most is not None and len(taken) > most:
            values["end_offset"] = taken[most]
        chosen = step(
            session,
            "select_chosen_messages",
            **values,
            offsets=id_list(taken[:most]) or "NULL",
        )
        return _Select(chosen, {row[0] for row in looked})
    if only.tags:
        return _Select(
            step(
                session,
                "select_tagged_messages",
                **values,
                tags=text_list(session, only.tags),
            )
        )
    return _Select(step(session, "select_messages", **values))


def read_stored_at_ms(session: Session, *, queue: int, offset: int) -> int | None:
    """Return the time when the first message at or above an offset was stored, or None
    above the last.
    """
    rows = fetch_rows(
        session, "select_stored_at", table=message_table(queue), first_offset=offset
    )
    return int(rows[0][0]) if rows else None


def read_producer(session: Session, *, queue: int, offset: int) -> str:
    """Return the name of the key or account that sent a message, '' if the message is not
    there.
    """
    rows = fetch_rows(
        session, "select_producer", table=message_table(queue), message_offset=offset
    )
    return str(rows[0][0]) if rows else ""


def literal_rows(batches: Sequence[NewBatch]) -> list[bytes]:
    """One row per message at offsets @b, @b+1, …, stored at @t."""
    rows: list[bytes] = []
    for batch in batches:
        source = quoted(batch.producer.encode())
        end = b"',NULL," + source + b",@t)"
        for index, message in enumerate(batch.messages, len(rows)):
            key = message.key
            if (
                key is None
                or message.tag is not None
                or message.trace_id is not None
                or message.headers
            ):
                rows.append(_row(index, message, source))
            else:  # most of them
                rows.append(
                    b"(@b+%d,'%b',NULL,NULL,_binary'%b%b"
                    % (index, escaped(key.encode()), escaped(message.body), end)
                )
    return rows


def _row(index: int, message: NewMessage, source: bytes) -> bytes:
    texts = (message.key, message.tag, headers_text(message.headers), message.trace_id)
    key, tag, headers, trace = (
        b"NULL" if one is None else quoted(one.encode()) for one in texts
    )
    body = quoted(message.body)
    return b"(@b+%d,%b,%b,%b,_binary%b,%b,%b,@t)" % (
        index,
        key,
        tag,
        headers,
        body,
        trace,
        source,
    )
