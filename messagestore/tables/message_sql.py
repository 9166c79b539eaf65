"""Statements for messages and for the batches they were sent in, and the rows of an INSERT.

The texts of the statements are in sql/mysql.sql and sql/sqlite.sql, by name. `first`, `end` are
offsets, of which `end` is the first that does not belong to the range. `most` is a limit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypedDict, cast

from messagestore.engine import db_errors
from messagestore.engine.messages import (
    ROW_OFFSET,
    MessageSearch,
    StoredMessage,
    StoredRow,
    headers_text,
    parse_headers,
    stored_message,
)
from messagestore.engine.mysql_session import (
    MySqlSession,
    Session,
    Step,
    escaped,
    quoted,
)
from messagestore.engine.sqlite_session import SqliteSession
from messagestore.engine.transaction_strings import Result
from messagestore.tables.shapes import NewBatch, Position, ReaderKey, SentBatch
from messagestore.tables.sql_steps import (
    fetch_rows,
    id_list,
    message_table,
    most_row_bytes,
    reader_columns,
    step,
    text_list,
    up_to_bytes,
)
from messagestore.tables.statements import load
from metadata.errors import TooLarge
from metadata.grouping import chunks
from metadata.rules.groups.filters import EVERYTHING, MessageFilter
from metadata.rules.nodes import Engine

# A shorter transaction is sent as a compound statement to MariaDB. Parsing a compound statement
# takes the server longer, by its length, and each answer that is saved costs the broker's thread a
# wake-up: below this length the latter is more.
_COMPOUND_BYTES = 16 << 10
_NO_OFFSET = "It is stored, but the answer does not say where."
_QUEUES_PER_TRIP = 100  # queues read in a single round trip


class _SendValues(TypedDict):
    """The values that all statements of a send share."""

    queue: int
    node_epoch: int
    message_count: int
    table: str


def insert_messages(
    session: Session, *, queue: int, node_epoch: int, batches: Sequence[NewBatch]
) -> int:
    """Store batches in order at the head of a queue, in a single transaction. Return the first
    offset.

    Raises `db_errors.Refused` if the queue is closed or has another node epoch,
    `db_errors.Duplicate` if a batch id is stored already (or the head is below a stored
    message), and other errors of the database.
    """
    values: _SendValues = {
        "queue": queue,
        "node_epoch": node_epoch,
        "message_count": sum(len(batch.messages) for batch in batches),
        "table": message_table(queue),
    }
    if isinstance(session, SqliteSession):
        return _insert_sqlite(session, values, batches)
    assert isinstance(session, MySqlSession)  # noqa: S101 - there are two engines
    is_mariadb = session.flavour == "mariadb"
    opening = step(
        session,
        "publish_open_mariadb" if is_mariadb else "publish_open",
        **values,
        batches=_batch_rows(session, queue, batches),
    )
    inserts = _inserts(session, values, literal_rows(batches))
    if is_mariadb:
        first = _first_on_mariadb(session, [opening, *inserts])
    else:
        # The UPDATE sets `head` to LAST_INSERT_ID(head + count), so that the server returns
        # the new head with its result, as an insert id. Some proxies drop it.
        raised, *_ = session.transact(opening, *inserts)
        first = raised.number - values["message_count"]
    if first is None or first < 0:
        raise db_errors.Ambiguous(_NO_OFFSET)
    return int(first)


def _first_on_mariadb(session: MySqlSession, steps: Sequence[Step]) -> int | None:
    """Run the statements of a send and return the first offset, which they keep as @b.

    None if a proxy has dropped the variable.
    """
    statements = b";".join(map(session.render, steps))
    # On Galera nothing may follow COMMIT: see transaction_strings.py.
    if len(statements) <= _COMPOUND_BYTES and not session.is_galera:
        whole = step(session, "publish_whole_mariadb", statements=statements)
        # The rows of its SELECT, and the end of the compound statement.
        selected, _ = session.send(session.render(whole), statements=2)
    else:
        *_, selected = session.transact(*steps, step(session, "publish_first_mariadb"))
    return selected.rows[0][0] if selected.rows else None


def _batch_rows(session: MySqlSession, queue: int, batches: Sequence[NewBatch]) -> bytes:
    """Return the rows for `sent_batch`. Each batch starts where the batch before it ends.

    They name the first offset of the send as @b and the storage time as @t, which the server
    knows only when it has raised the head.
    """
    rows: list[bytes] = []
    offset_in_send = 0
    for batch in batches:
        count = len(batch.messages)
        columns = (
            session.literal(batch.batch_id),
            queue,
            offset_in_send,
            count,
            session.literal(batch.digest),
        )
        rows.append(b"(%b,%d,@b+%d,%d,%b,@t)" % columns)
        offset_in_send += count
    return b",".join(rows)


def _inserts(session: MySqlSession, values: _SendValues, rows: list[bytes]) -> list[Step]:
    """Return INSERT statements for the rows, each within the server's
    `max_allowed_packet`.
    """
    limit = most_row_bytes(session)
    whole = b",".join(rows)
    if len(whole) <= limit:
        return [step(session, "publish_rows", **values, rows=whole)]
    packets: list[list[bytes]] = [[]]
    size = 0
    for row in rows:
        if len(row) > limit:
            raise TooLarge(
                "A message does not fit the node's max_allowed_packet of "
                f"{session.max_packet} bytes."
            )
        if size + len(row) > limit:
            packets.append([])
            size = 0
        packets[-1].append(row)
        size += len(row) + 1
    return [
        step(session, "publish_rows", **values, rows=b",".join(packet_rows))
        for packet_rows in packets
    ]


def _insert_sqlite(
    session: SqliteSession, values: _SendValues, batches: Sequence[NewBatch]
) -> int:
    statements = load(Engine.SQLITE)
    with session.transaction() as database:
        # SQLite has no multi-statement string, so the same steps run one by one.
        row = database.execute(statements["publish_head"].text, values).fetchone()
        if row is None:
            raise db_errors.Refused("The queue is closed or has another epoch.")
        first, stored_at = row
        database.execute(
            statements["publish_raise"].text, {**values, "stored_at": stored_at}
        )
        (insert,) = statements["publish_rows"].single(values)
        next_offset = first
        for batch in batches:
            columns = {
                **batch._asdict(),
                "queue": values["queue"],
                "first_offset": next_offset,
                "message_count": len(batch.messages),
                "stored_at": stored_at,
            }
            database.execute(statements["publish_batch"].text, columns)
            rows = (
                (offset, m.key, m.tag, headers_text(m.headers), m.body, m.trace_id,
                 batch.producer, stored_at)
                for offset, m in enumerate(batch.messages, next_offset)
            )  # fmt: skip
            database.executemany(insert, rows)
            next_offset += len(batch.messages)
    return int(first)


def find_batch(session: Session, *, batch_id: bytes) -> SentBatch | None:
    rows = session.run(step(session, "select_sent_batch", batch_id=batch_id))[-1].rows
    return SentBatch(*rows[0]) if rows else None


def delete_old_batches(session: Session, *, hours: int, most: int) -> int:
    """Delete batches stored more than `hours` ago, at most `most`, the oldest first. Return
    how many.
    """
    return session.transact(step(session, "delete_old_batches", hours=hours, most=most))[
        0
    ].matched


def select_messages(
    session: Session, *, queue: int, first: int, end: int, most_bytes: int
) -> list[StoredMessage]:
    """Return the stored messages at offsets first … end-1, until their bodies reach
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
    """Return the rows of messages at offsets first … end-1, until their bodies reach
    `most_bytes`. `only`: see read_positions_and_rows.
    """
    select = _select_range(session, queue, first=first, end=end, only=only)
    (result,) = session.run(select.step, count_fitting=up_to_bytes(most_bytes))
    return select.rows(result)


def select_copies(
    session: Session, *, queue: int, first: int, end: int, most_bytes: int
) -> tuple[list[StoredRow], Sequence[str | None]]:
    """Return the rows that select_rows() returns, of a retry topic's queue, and the origin of
    each row.
    """
    span = {"first_offset": first, "end_offset": end}
    select = step(session, "select_copies", table=message_table(queue), **span)
    (result,) = session.run(select, count_fitting=up_to_bytes(most_bytes))
    return _split_origins(result)


def search_range(
    session: Session,
    *,
    queue: int,
    bounds: tuple[int, int],
    wanted: MessageSearch,
    most: int,
    most_bytes: int,
    offsets: Sequence[int] | None = None,
) -> list[StoredMessage]:
    """Return at most `most` messages at offsets first … end-1 that match `wanted`.

    `bounds` is (first, end). Every row of it is read, so keep the range short. With
    `offsets`, only these rows are read.
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
        only="" if offsets is None else f"AND msg_offset IN ({id_list(offsets) or 'NULL'})",
    )
    (result,) = session.run(search, count_fitting=up_to_bytes(most_bytes))
    return [stored_message(queue, row) for row in _message_rows(result)]


def find_key_offsets(
    session: Session, *, queues: Mapping[int, tuple[int, int]], key: str, most: int
) -> dict[int, list[int]]:
    """Return up to `most` offsets of the messages with a key in each queue, rising.

    `queues` has the bounds (first, end) of each queue, whose tables must have a key index:
    raises `db_errors.Final` if a table or a partition has none. One round trip. The messages
    may not be durable yet, or be above the head.
    """
    # The statement forces the index. Without that, a table whose index was just dropped would
    # be scanned as a whole.
    results = session.run(
        *(
            step(
                session,
                "find_key",
                table=message_table(queue),
                msg_key=key,
                first_offset=first,
                end_offset=end,
                most=most,
            )
            for queue, (first, end) in queues.items()
        )
    )
    return {
        queue: [offset for (offset,) in result.rows]
        for queue, result in zip(queues, results, strict=True)
    }


def count_matching(
    session: Session, *, newest: Mapping[int, int], only: MessageFilter
) -> tuple[int, int]:
    """Count the newest messages of some queues. Return how many exist, and how many of them a
    filter takes.

    `newest` is {queue: number of its newest offsets to read}. Declared gaps and offsets that
    retention deleted do not count. A queue without a head row counts as empty.
    """
    existing = matching = 0
    for queues in chunks(list(newest), _QUEUES_PER_TRIP):
        heads = session.run(
            *(step(session, "select_head", queue=queue) for queue in queues)
        )
        latest = [
            step(
                session,
                "select_latest_headers",
                table=message_table(queue),
                first_offset=low,
                end_offset=head,
                most=newest[queue],
            )
            for queue, result in zip(queues, heads, strict=True)
            for head, low, *_ in result.rows
        ]
        for result in session.run(*latest) if latest else ():
            existing += len(result.rows)
            matching += sum(
                only.takes(tag, parse_headers(headers)) for tag, headers in result.rows
            )
    return existing, matching


def read_positions_and_rows(
    session: Session,
    *,
    reader: ReaderKey,
    first: int,
    end: int,
    most_bytes: int,
    only: MessageFilter = EVERYTHING,
    most: int | None = None,
    other_queues: Sequence[int] = (),
    with_origins: bool = False,
) -> tuple[dict[int, Position], list[StoredRow], Sequence[str | None]]:
    """Return positions of a reader, message rows and their origins, in a single round trip.

    The positions are {queue: position}, of the reader's queue and of `other_queues`. The rows
    are the messages at offsets first … end-1 of the reader's queue, until their bodies reach
    `most_bytes`. The head in a position is read before the rows.

    Messages that do not match `only` come as rows without headers and body (None). A filter on
    headers costs one more statement and takes at most `most` messages: the rows end before the
    next match.

    `with_origins` is for a queue of a retry topic, whose messages are copies: the third result
    has the origin of each row, and `only` is ignored. Otherwise it is empty.
    """
    if with_origins:
        span = {"first_offset": first, "end_offset": end}
        select = _RangeSelect(
            step(session, "select_copies", table=message_table(reader.queue), **span)
        )
    else:
        select = _select_range(
            session, reader.queue, first=first, end=end, only=only, most=most
        )
    # Position and rows in a single round trip: a second one would double the time of an empty
    # poll.
    positions, messages = session.run(
        step(
            session,
            "select_positions",
            **reader_columns(reader),
            queues=id_list([reader.queue, *other_queues]),
        ),
        select.step,
        count_fitting=up_to_bytes(most_bytes),
    )
    positions_by_queue = {row[0]: Position(*row) for row in positions.rows}
    if not with_origins:
        return positions_by_queue, select.rows(messages), ()
    return positions_by_queue, *_split_origins(messages)


def _split_origins(result: Result) -> tuple[list[StoredRow], Sequence[str | None]]:
    """Return the rows of `select_copies`, whose last column is the origin, and the origins."""
    return [cast("StoredRow", row[:-1]) for row in result.rows], [
        row[-1] for row in result.rows
    ]


def _message_rows(result: Result) -> list[StoredRow]:
    """Return the rows of a result. Their columns are the fields of a StoredRow."""
    return cast("list[StoredRow]", result.rows)


class _RangeSelect(NamedTuple):
    """A statement for the messages of a range of offsets.

    `checked_offsets` are the offsets whose headers were compared with a filter on headers, None
    without such a filter.
    """

    step: Step
    checked_offsets: Collection[int] | None = None

    def rows(self, result: Result) -> list[StoredRow]:
        """Return the rows of a result of the statement."""
        # On a replica more rows may have arrived since the headers were read. Nothing is known
        # of their headers, so they are left out.
        rows = _message_rows(result)
        return (
            rows
            if self.checked_offsets is None
            else [row for row in rows if row[ROW_OFFSET] in self.checked_offsets]
        )


def _select_range(
    session: Session,
    queue: int,
    *,
    first: int,
    end: int,
    only: MessageFilter,
    most: int | None = None,
) -> _RangeSelect:
    """Return the statement for a range of offsets and a filter.

    If the filter has headers, they are read here, and the statement names the matching offsets.
    """
    values: dict[str, object] = {
        "table": message_table(queue),
        "first_offset": first,
        "end_offset": end,
    }
    # Only tags and headers are read here, so that rejected messages cost no body.
    if only.headers:
        header_rows = fetch_rows(session, "select_headers", **values)
        matching = [
            offset
            for offset, tag, headers in header_rows
            if only.takes(tag, parse_headers(headers))
        ]
        if most is not None and len(matching) > most:
            # End before the next match, so that the caller continues there and skips none.
            values["end_offset"] = matching[most]
        chosen_step = step(
            session,
            "select_chosen_messages",
            **values,
            offsets=id_list(matching[:most]) or "NULL",
        )
        return _RangeSelect(chosen_step, {row[0] for row in header_rows})
    if only.tags:
        return _RangeSelect(
            step(
                session,
                "select_tagged_messages",
                **values,
                tags=text_list(session, only.tags),
            )
        )
    return _RangeSelect(step(session, "select_messages", **values))


def read_stored_at_ms(session: Session, *, queue: int, offset: int) -> int | None:
    """Return the time when the first message at or above an offset was stored, None if
    there is none.
    """
    rows = fetch_rows(
        session, "select_stored_at", table=message_table(queue), first_offset=offset
    )
    return int(rows[0][0]) if rows else None


def read_producer(session: Session, *, queue: int, offset: int) -> str:
    """Return the name of the API key or account that sent a message, '' if it does not
    exist.
    """
    rows = fetch_rows(
        session, "select_producer", table=message_table(queue), message_offset=offset
    )
    return str(rows[0][0]) if rows else ""


def literal_rows(batches: Sequence[NewBatch]) -> list[bytes]:
    """Return one row per message, for offsets @b, @b+1, … and storage time @t."""
    rows: list[bytes] = []
    for batch in batches:
        producer = quoted(batch.producer.encode())
        # The end of a simple row: it closes the quote of the body. The producer is the same for
        # all messages of a batch, so it is escaped once.
        simple_end = b"',NULL," + producer + b",@t)"
        for index, message in enumerate(batch.messages, len(rows)):
            key = message.key
            if message.tag is not None or message.trace_id is not None or message.headers:
                texts = (key, message.tag, headers_text(message.headers), message.trace_id)
                key_sql, tag, headers, trace = (
                    b"NULL" if text is None else quoted(text.encode()) for text in texts
                )
                rows.append(
                    b"(@b+%d,%b,%b,%b,_binary%b,%b,%b,@t)"
                    % (index, key_sql, tag, headers, quoted(message.body), trace, producer)
                )
            # Nearly all messages have a body and perhaps a key only. Formatting dominates the CPU
            # cost of a send, so they take one expression. The quote that it opens before the body
            # is closed by `simple_end`.
            elif key is None:
                rows.append(
                    b"(@b+%d,NULL,NULL,NULL,_binary'%b%b"
                    % (index, escaped(message.body), simple_end)
                )
            else:
                rows.append(
                    b"(@b+%d,'%b',NULL,NULL,_binary'%b%b"
                    % (index, escaped(key.encode()), escaped(message.body), simple_end)
                )
    return rows
