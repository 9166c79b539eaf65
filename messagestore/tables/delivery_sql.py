"""Moves due messages from the table of delayed messages into their queues, in one
transaction.

The heads of the queues are locked in rising order, then the delayed rows that no other
session has locked. Exactly these rows are inserted into the queues and deleted here. If the
numbers differ, the transaction is rolled back, so a message is moved exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from messagestore.engine import db_errors
from messagestore.engine.messages import headers_text
from messagestore.engine.mysql_session import MySqlSession, Session, Step
from messagestore.engine.sqlite_session import SqliteSession
from messagestore.tables.shapes import DelayedRow, NewBatch
from messagestore.tables.sql_steps import id_list, message_table, step
from messagestore.tables.statements import load
from metadata.rules.nodes import Engine

# makes the batch of one message that a delayed row becomes
ToBatch = Callable[[DelayedRow], NewBatch]


class _Move(NamedTuple):
    """Rows that go into one queue, as batches of one message each. `head` is the first
    offset.
    """

    queue: int
    head: int
    rows: Sequence[DelayedRow]
    batches: Sequence[NewBatch]

    @property
    def end(self) -> int:
        """The log end offset after the move."""
        return self.head + len(self.rows)


def move_delayed(
    session: Session,
    *,
    targets: Mapping[int, Sequence[int]],
    node_epoch: int,
    to_batch: ToBatch,
) -> dict[int, int]:
    """Move delayed rows into queues and return the new heads, {queue: head}.

    `targets` is {queue: delayed rows in order}. A row stays if the head row of its queue
    does not allow the move, or if another session moved it, moves it now, or recalls it.
    Raises `db_errors.*`; then nothing was moved, unless it is Ambiguous.
    """
    if isinstance(session, MySqlSession):
        return _move_mysql(session, targets, node_epoch, to_batch)
    assert isinstance(session, SqliteSession)  # noqa: S101 - there are two engines
    return _move_sqlite(session, targets, node_epoch, to_batch)


def _moves(
    targets: Mapping[int, Sequence[int]],
    heads: Mapping[int, int],
    locked_rows: Sequence[DelayedRow],
    to_batch: ToBatch,
) -> list[_Move]:
    """Return the moves of the locked rows, in rising order of queues."""
    rows = {row.id: row for row in locked_rows}
    moves = []
    for queue, head in sorted(heads.items()):
        queue_rows = [rows[row] for row in targets[queue] if row in rows]
        if queue_rows:
            moves.append(
                _Move(queue, head, queue_rows, [to_batch(row) for row in queue_rows])
            )
    return moves


def _move_mysql(
    session: MySqlSession,
    targets: Mapping[int, Sequence[int]],
    node_epoch: int,
    to_batch: ToBatch,
) -> dict[int, int]:
    # Every session locks heads in rising order, so that two cannot deadlock.
    lock_heads = [
        step(session, "lock_head", queue=queue, node_epoch=node_epoch)
        for queue in sorted(targets)
    ]
    row_ids = [row for rows in targets.values() for row in rows]
    lock_rows = step(session, "lock_delayed", rows=id_list(row_ids))
    *locked_heads, delayed = session.transact(*lock_heads, lock_rows, ends=False)
    # A closed queue has no row. Its messages stay.
    heads = dict(result.rows[0] for result in locked_heads if result.rows)
    locked_rows = [DelayedRow(*row) for row in delayed.rows]
    moves = _moves(targets, heads, locked_rows, to_batch)
    if not moves:
        # All rows are being moved by another session, or their queues are closed.
        session.roll_back()
        return {}
    moved = [row.id for move in moves for row in move.rows]
    steps = [insert_step for move in moves for insert_step in _move_steps(session, move)]
    # In the same transaction as the inserts: a crash moves each row or leaves it.
    steps.append(step(session, "delete_delayed", rows=id_list(moved)))
    *_, deleted = session.transact(*steps, begins=False, ends=False)
    # A row that was inserted but not deleted would be delivered twice.
    if deleted.matched != len(moved):
        session.roll_back()
        raise db_errors.RolledBack(
            f"{deleted.matched} of {len(moved)} delayed messages were deleted."
        )
    session.transact(begins=False)
    return {move.queue: move.end for move in moves}


def _move_steps(session: MySqlSession, move: _Move) -> list[Step]:
    batches, rows = [], []
    for offset, (row, batch) in enumerate(
        zip(move.rows, move.batches, strict=True), move.head
    ):
        columns = (
            session.literal(batch.batch_id),
            move.queue,
            offset,
            session.literal(batch.digest),
        )
        batches.append(b"(%b,%d,%d,1,%b,@t)" % columns)
        (message,) = batch.messages
        content = (
            message.key,
            message.tag,
            headers_text(message.headers),
            message.body,
            message.trace_id,
        )
        literals = b",".join(map(session.literal, (offset, *content, batch.producer)))
        rows.append(b"(%b,@t,%d,%b)" % (literals, row.attempt, session.literal(row.origin)))
    head = step(
        session, "move_head", queue=move.queue, head=move.end, batches=b",".join(batches)
    )
    return [
        head,
        step(session, "move_rows", table=message_table(move.queue), rows=b",".join(rows)),
    ]


def _move_sqlite(
    session: SqliteSession,
    targets: Mapping[int, Sequence[int]],
    node_epoch: int,
    to_batch: ToBatch,
) -> dict[int, int]:
    statements = load(Engine.SQLITE)
    row_ids = [row for rows in targets.values() for row in rows]
    with session.transaction() as database:
        heads, stored_at = {}, {}
        for queue in sorted(targets):
            head = {"queue": queue, "node_epoch": node_epoch}
            # A closed queue has no row here. Its messages stay.
            for head_row in database.execute(statements["lock_head"].text, head):
                heads[queue], stored_at[queue] = head_row
        (select,) = statements["select_delayed"].single({"rows": id_list(row_ids)})
        rows = [DelayedRow(*row) for row in database.execute(select)]
        moves = _moves(targets, heads, rows, to_batch)
        moved = [row.id for move in moves for row in move.rows]
        for move in moves:
            at = stored_at[move.queue]
            raised = {"queue": move.queue, "message_count": len(move.rows), "stored_at": at}
            database.execute(statements["publish_raise"].text, raised)
            for offset, batch in enumerate(move.batches, move.head):
                columns = {**batch._asdict(), "queue": move.queue, "first_offset": offset}
                values = {**columns, "message_count": 1, "stored_at": at}
                database.execute(statements["publish_batch"].text, values)
            (insert,) = statements["move_rows"].single({"table": message_table(move.queue)})
            rows_of_move = enumerate(zip(move.rows, move.batches, strict=True), move.head)
            values_of_rows = (
                (offset, m.key, m.tag, headers_text(m.headers), m.body, m.trace_id,
                 batch.producer, at, row.attempt, row.origin)
                for offset, (row, batch) in rows_of_move
                for m in batch.messages
            )  # fmt: skip
            database.executemany(insert, values_of_rows)
        (delete,) = statements["delete_delayed"].single({"rows": id_list(moved)})
        if database.execute(delete).rowcount != len(moved):
            raise db_errors.RolledBack("The delayed messages changed meanwhile.")
    return {move.queue: move.end for move in moves}
