"""Every verb that touches a table of a node; the only module that runs statements.

A verb takes a `Session` (borrowed from `connections.Node`) and plain values, and answers plain
values. Time is always the node's own clock. The rules behind each statement stand in
docs/explanation/store.md.

    node       create_node_tables  server_facts  now_ms
    queue      create_queue  drop_queue  set_queue_state  close_queues  open_queues  read_head  read_heads
               read_closed  forget_readers  read_gaps
    messages   insert_messages  find_batch  delete_old_batches  select_from  stored_at_ms
    readers    insert_readers  delete_readers  delete_instance  read_positions  acquire_reader
               update_committed  reset_reader
    verify     count_rows  list_offsets  offset_ends  list_readers  batch_ends  end_of_batches  list_batches
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from messagestore import faults
from messagestore.messages import NewMessage, StoredMessage, headers_text
from messagestore.sessions import Fits, MySqlSession, Result, Session, SqliteSession, Step
from messagestore.statements import load
from metadata.errors import TooLarge

_BODY = 4  # the column of `select_messages`
_INSTANCES_EACH = 100  # whose reader rows are made in one transaction


class Head(NamedTuple):
    """A queue's row in `queue_head`; state is `rw`, `ro` or `retired`."""

    head: int
    low: int
    state: str
    node_epoch: int


class Position(NamedTuple):
    """Where a reader stands in a queue, and the queue's bounds read with it.

    `epoch`, `owner` and `committed` are None where the group has no reader row.
    """

    queue: int
    head: int
    low: int
    epoch: int | None
    owner: str | None
    committed: int | None


class SentBatch(NamedTuple):
    """What `sent_batch` remembers of a stored batch."""

    queue: int
    first_offset: int
    message_count: int
    digest: bytes


class ReaderKey(NamedTuple):
    """A reader row's primary key; `instance` is '' unless the group broadcasts."""

    group_id: int
    queue: int
    instance: str = ""


class RowCount(NamedTuple):
    """What a range of offsets holds: rows, the span of their times (None without rows), and how often the
    time of a row is before that of the row before it."""

    rows: int
    earliest_ms: int | None
    latest_ms: int | None
    falls: int


class ReaderRow(NamedTuple):
    """A row of `reader`."""

    queue: int
    group_id: int
    instance: str
    epoch: int
    owner: str
    committed: int


class BatchRow(NamedTuple):
    """A row of `sent_batch`."""

    batch_id: bytes
    queue: int
    first_offset: int
    message_count: int
    digest: bytes
    stored_at_ms: int


class ServerFacts(NamedTuple):
    """What decides whether a MySQL / MariaDB server may be a node."""

    version: str
    character_set: str
    collation: str
    flush_log_at_commit: int
    log_bin: int
    sync_binlog: int
    binlog_format: str
    read_only: int


def message_table(queue: int) -> str:
    """The table that holds a queue."""
    return f"message_{queue:d}"


def _step(session: Session, name: str, **parameters: object) -> Step:
    return Step(load(session.engine)[name], parameters)


def _rows(session: Session, name: str, **parameters: object) -> Sequence[tuple[Any, ...]]:
    return session.run(_step(session, name, **parameters))[-1].rows


def _reader(key: ReaderKey) -> dict[str, object]:
    return {"group_id": key.group_id, "queue": key.queue, "instance": key.instance}


# ---------------------------------------------------------------------------------------------- node


def create_node_tables(session: Session) -> None:
    """Makes the tables every node has; harmless when they exist."""
    session.run(_step(session, "create_node_tables"))


def server_facts(session: Session) -> ServerFacts:
    """The settings of a MySQL / MariaDB server that durability and text depend on."""
    return ServerFacts(*_rows(session, "select_server")[0])


def now_ms(session: Session) -> int:
    """The node's clock, ms since 1970 UTC."""
    return int(_rows(session, "select_now")[0][0])


# --------------------------------------------------------------------------------------------- queue


def create_queue(session: Session, *, queue: int, node_epoch: int) -> None:
    """Makes a queue's table and head row; harmless when they exist."""
    session.run(_step(session, "create_message_table", table=message_table(queue)))
    session.transact(_step(session, "insert_head", queue=queue, node_epoch=node_epoch))


def drop_queue(session: Session, *, queue: int) -> None:
    """Removes a queue's table, head row and reader rows; harmless when they are gone.

    The head goes first: from then on no write can begin.
    """
    session.transact(
        _step(session, "delete_head", queue=queue), _step(session, "delete_queue_readers", queue=queue)
    )
    session.run(_step(session, "drop_message_table", table=message_table(queue)))


def set_queue_state(session: Session, *, queue: int, state: str) -> None:
    """Opens or closes a queue for writers."""
    session.transact(_step(session, "update_queue_state", queue=queue, state=state))


def close_queues(session: Session) -> None:
    """Closes every open queue of the node for writers; no write can begin once this has ended."""
    session.transact(_step(session, "close_heads"))


def open_queues(session: Session, *, queues: Sequence[int]) -> None:
    """Opens those of `queues` that are closed, not those that are retired."""
    if queues:
        session.transact(_step(session, "open_heads", queues=_ids(queues)))


def read_head(session: Session, *, queue: int) -> Head | None:
    """A queue's head row, or None."""
    rows = _rows(session, "select_head", queue=queue)
    return Head(*rows[0]) if rows else None


def read_heads(session: Session, *, queues: Sequence[int] | None) -> dict[int, int]:
    """{queue: head} of some queues, or of all of the node."""
    if queues is None:
        return dict(_rows(session, "select_all_heads"))
    return dict(_rows(session, "select_heads", queues=_ids(queues))) if queues else {}


def read_closed(session: Session) -> dict[int, str]:
    """{queue: state} of every queue of the node that is closed for writers."""
    return dict(_rows(session, "select_closed_heads"))


def forget_readers(session: Session, *, queue: int) -> None:
    """Forgets every place in a queue."""
    session.transact(_step(session, "delete_queue_readers", queue=queue))


def read_gaps(session: Session, *, queue: int, position: int) -> list[tuple[int, int]]:
    """Declared gaps (from, to) that end above a position, in rising order; `to` is exclusive."""
    return [(first, end) for first, end in _rows(session, "select_gaps", queue=queue, position=position)]


def _ids(queues: Sequence[int]) -> str:
    return ",".join(str(int(queue)) for queue in queues)


# ------------------------------------------------------------------------------------------ messages


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
    opening = session.render(_step(session, "publish_open", **batch))
    closing = session.render(_step(session, "publish_close"))
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
    return [session.render(_step(session, "publish_rows", **batch, rows=b",".join(rows))) for rows in chunks]


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
    rows = _rows(session, "select_sent_batch", batch_id=batch_id)
    return SentBatch(*rows[0]) if rows else None


def delete_old_batches(session: Session, *, hours: int, most: int) -> int:
    """Forgets batches stored more than some hours ago, the oldest first, at most so many; how many."""
    return session.transact(_step(session, "delete_old_batches", hours=hours, most=most))[0].matched


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
        _step(session, "select_positions", **_reader(reader), queues=_ids([reader.queue])),
        _select(session, reader.queue, first, end),
        fits=_until(most_bytes),
    )
    position = Position(*positions.rows[0]) if positions.rows else None
    return position, [_stored(reader.queue, row) for row in messages.rows]


def _select(session: Session, queue: int, first: int, end: int) -> Step:
    return _step(session, "select_messages", table=message_table(queue), first_offset=first, end_offset=end)


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
    rows = _rows(session, "select_stored_at", table=message_table(queue), first_offset=offset)
    return int(rows[0][0]) if rows else None


# ------------------------------------------------------------------------------------------- readers


def insert_readers(
    session: Session,
    *,
    group_id: int,
    queues: Sequence[int],
    epoch: int,
    latest: bool,
    instances: Sequence[str] = ("",),
) -> None:
    """Makes reader rows at the queues' low or head, for each instance; one that exists keeps its place.

    Rows below the epoch do not count as existing: an earlier subscription left them.
    """
    rows: dict[str, object] = {"group_id": group_id, "queues": _ids(queues), "below": epoch}
    rows |= {"epoch": epoch, "latest": int(latest)}
    for first in range(0, len(instances), _INSTANCES_EACH):
        steps = []
        for one in instances[first : first + _INSTANCES_EACH]:
            steps.append(_step(session, "delete_instance_readers", **rows, instance=one))
            steps.append(_step(session, "insert_readers", **rows, instance=one))
        session.transact(*steps)


def delete_readers(
    session: Session, *, group_id: int, queues: Sequence[int], below: int, instance: str | None = None
) -> None:
    """Forgets the places of a group's readers (None: of all its instances) whose epoch is below a bound."""
    rows: dict[str, object] = {"group_id": group_id, "queues": _ids(queues), "below": below}
    if instance is None:
        session.transact(_step(session, "delete_readers", **rows))
    else:
        session.transact(_step(session, "delete_instance_readers", **rows, instance=instance))


def delete_instance(session: Session, *, group_id: int, instance: str) -> None:
    """Forgets every place of an instance."""
    session.transact(_step(session, "delete_instance", group_id=group_id, instance=instance))


def read_positions(
    session: Session, *, group_id: int, queues: Sequence[int], instance: str = ""
) -> dict[int, Position]:
    """{queue: position} of those queues that have a head row."""
    rows = _rows(session, "select_positions", group_id=group_id, instance=instance, queues=_ids(queues))
    return {row[0]: Position(*row) for row in rows}


def acquire_reader(
    session: Session, *, reader: ReaderKey, epoch: int, owner: str
) -> tuple[int, str, int] | None:
    """Claims a queue for an owner at an epoch; the (epoch, owner, committed) that stand afterwards decide.

    From the moment this commits no earlier owner can pull or commit. None where no reader row exists.
    """
    results = session.transact(_step(session, "acquire_reader", **_reader(reader), epoch=epoch, owner=owner))
    rows = results[-1].rows
    return rows[0] if rows else None


def update_committed(
    session: Session,
    *,
    group_id: int,
    owner: str,
    offsets: Sequence[tuple[int, int, int]],
    instance: str = "",
) -> list[bool]:
    """Commits (queue, epoch, offset)s in one transaction; for each whether its reader row allowed it.

    Refused are another epoch or owner and an offset above the head; a lower offset than the committed
    one changes nothing and is allowed.
    """
    results = session.transact(
        *(
            _step(
                session,
                "update_committed",
                group_id=group_id,
                instance=instance,
                owner=owner,
                queue=queue,
                epoch=epoch,
                position=offset,
            )
            for queue, epoch, offset in offsets
        )
    )
    return [result.matched == 1 for result in results]


def reset_reader(session: Session, *, reader: ReaderKey, offset: int) -> tuple[int, str, int] | None:
    """Moves a reader by hand: position, epoch + 1, no owner; the (epoch, owner, committed) afterwards."""
    session.transact(_step(session, "reset_reader", **_reader(reader), position=offset))
    position = read_positions(
        session, group_id=reader.group_id, queues=[reader.queue], instance=reader.instance
    ).get(reader.queue)
    if position is None or position.epoch is None or position.owner is None or position.committed is None:
        return None
    return position.epoch, position.owner, position.committed


# ------------------------------------------------------------------------------------------- verify


def count_rows(session: Session, *, queue: int, first: int, end: int) -> RowCount:
    """What lies at offsets first … end-1; keep the range short."""
    rows = _rows(session, "count_rows", table=message_table(queue), first_offset=first, end_offset=end)
    return RowCount(*rows[0])


def list_offsets(session: Session, *, queue: int, first: int, end: int) -> list[tuple[int, int]]:
    """(offset, stored at in ms) of the rows at offsets first … end-1."""
    table = message_table(queue)
    return list(_rows(session, "select_offsets", table=table, first_offset=first, end_offset=end))


def offset_ends(session: Session, *, queue: int, first: int) -> tuple[int | None, int | None]:
    """The lowest and the highest offset at or above `first` that has a row."""
    lowest, highest = _rows(session, "select_ends", table=message_table(queue), first_offset=first)[0]
    return lowest, highest


def list_readers(session: Session, *, queues: Sequence[int]) -> list[ReaderRow]:
    """The reader rows of some queues, of all groups and instances; asked group by group."""
    groups = [group_id for (group_id,) in _rows(session, "select_reader_groups")] if queues else []
    return [
        ReaderRow(*row)
        for group_id in groups
        for row in _rows(session, "select_readers", group_id=group_id, queues=_ids(queues))
    ]


def batch_ends(session: Session) -> tuple[bytes | None, int | None]:
    """The highest batch id that is remembered, and when the oldest batch was stored."""
    highest, oldest_ms = _rows(session, "select_batch_ends")[0]
    return highest, oldest_ms


def end_of_batches(session: Session, *, after: bytes, last: bytes, most: int) -> tuple[int, bytes | None]:
    """How many batch ids lie above `after` and up to `last`, at most `most`, and the highest of these."""
    count, highest = _rows(session, "select_batch_page", after=after, last=last, most=most)[0]
    return count, highest


def list_batches(
    session: Session, *, queues: Sequence[int], after: bytes, last: bytes, since_ms: int
) -> list[BatchRow]:
    """Batches of some queues, by id, with ids above `after` and up to `last`, stored at a time or later."""
    values = {"queues": _ids(queues), "after": after, "last": last, "since_ms": since_ms}
    return [BatchRow(*row) for row in _rows(session, "select_batches", **values)]
