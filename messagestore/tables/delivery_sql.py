"""Moves due messages from the table of delayed messages into their queues: one transaction,
exactly once.

The heads of the queues are locked in rising order, then the rows, those that nobody else
has locked. Exactly these are inserted, exactly these deleted; what does not add up is
rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from messagestore.engine import db_errors
from messagestore.engine.messages import headers_text
from messagestore.engine.mysql_session import (
    MySqlSession,
    Result,
    Session,
    Step,
    count_statements,
)
from messagestore.engine.sqlite_session import SqliteSession
from messagestore.engine.statements import load
from messagestore.tables.shapes import DelayedRow, NewBatch
from messagestore.tables.sql_steps import id_list, message_table, step

# a row as the batch of one message that is made of it
Ready = Callable[[DelayedRow], NewBatch]


class _Move(NamedTuple):
    """Rows and batches that go into one queue; `head` is where it begins."""

    queue: int
    head: int
    rows: Sequence[DelayedRow]
    batches: Sequence[NewBatch]

    @property
    def end(self) -> int:
        """The head afterwards."""
        return self.head + len(self.rows)


def move_delayed(
    session: Session, *, targets: Mapping[int, Sequence[int]], node_epoch: int, ready: Ready
) -> dict[int, int]:
    """Move rows into the queues they are given for, {queue: rows in order}; {queue: its
    head now}.

    Left where they are: rows for a queue whose head row does not allow it, and rows that
    are gone or being moved or recalled by somebody else. Raises `db_errors.*`; then nothing
    was moved, unless it is Ambiguous.
    """
    if isinstance(session, MySqlSession):
        return _move_mysql(session, targets, node_epoch, ready)
    assert isinstance(session, SqliteSession)  # noqa: S101 - there are two engines
    return _move_sqlite(session, targets, node_epoch, ready)


def _moves(
    targets: Mapping[int, Sequence[int]],
    heads: Mapping[int, int],
    found: Sequence[DelayedRow],
    ready: Ready,
) -> list[_Move]:
    """Return the moves for the locked heads and rows, in rising order of queues."""
    rows = {row.id: row for row in found}
    moves = []
    for queue, head in sorted(heads.items()):
        mine = [rows[row] for row in targets[queue] if row in rows]
        if mine:
            moves.append(_Move(queue, head, mine, [ready(row) for row in mine]))
    return moves


def _move_mysql(
    session: MySqlSession,
    targets: Mapping[int, Sequence[int]],
    node_epoch: int,
    ready: Ready,
) -> dict[int, int]:
    heads, found = _lock(session, targets, node_epoch)
    moves = _moves(targets, heads, found, ready)
    if not moves:
        _send(session, [step(session, "move_rollback")])
        return {}
    moved = [row.id for move in moves for row in move.rows]
    steps = [one for move in moves for one in _steps(session, move)]
    steps.append(step(session, "delete_delayed", rows=id_list(moved)))
    results = _send_open(session, steps)
    if results[-1].matched != len(moved):
        _send(session, [step(session, "move_rollback")])
        raise db_errors.RolledBack(
            f"{results[-1].matched} of {len(moved)} delayed messages were deleted."
        )
    _send(session, [step(session, "move_commit")])
    return {move.queue: move.end for move in moves}


def _send(
    session: MySqlSession, steps: Sequence[Step], *, ends: bool = True
) -> list[Result]:
    """Run sections as one string, inside a transaction that stays open unless it `ends`."""
    return session.send(
        b";".join(map(session.render, steps)),
        statements=count_statements(steps),
        ends_transaction=ends,
    )


def _send_open(session: MySqlSession, steps: Sequence[Step]) -> list[Result]:
    """The same for a transaction that goes on; section by section if they do not fit one
    packet.
    """
    texts = [session.render(one) for one in steps]
    whole = b";".join(texts)
    if len(whole) <= session.max_packet:
        return session.send(
            whole, statements=count_statements(steps), ends_transaction=False
        )
    for text, one in zip(texts, steps, strict=True):
        results = session.send(text, statements=one.statement.count, ends_transaction=False)
    return results


def _lock(
    session: MySqlSession, targets: Mapping[int, Sequence[int]], node_epoch: int
) -> tuple[dict[int, int], list[DelayedRow]]:
    """Begin the transaction: {queue: head} of the open queues, and the rows."""
    wanted = id_list([row for rows in targets.values() for row in rows])
    steps = [
        step(session, "lock_head", queue=queue, node_epoch=node_epoch)
        for queue in sorted(targets)
    ]
    begun = [
        step(session, "move_begin"),
        *steps,
        step(session, "lock_delayed", rows=wanted),
    ]
    results = _send(session, begun, ends=False)
    heads = dict(result.rows[0] for result in results[1:-1] if result.rows)
    return heads, [DelayedRow(*row) for row in results[-1].rows]


def _steps(session: MySqlSession, move: _Move) -> list[Step]:
    batches, rows = [], []
    for offset, (row, batch) in enumerate(
        zip(move.rows, move.batches, strict=True), move.head
    ):
        known = (
            session.literal(batch.batch_id),
            move.queue,
            offset,
            session.literal(batch.digest),
        )
        batches.append(b"(%b,%d,%d,1,%b,@t)" % known)
        (message,) = batch.messages
        content = (
            message.key,
            message.tag,
            headers_text(message.headers),
            message.body,
            message.trace_id,
        )
        before = b",".join(map(session.literal, (offset, *content, batch.producer)))
        rows.append(b"(%b,@t,%d,%b)" % (before, row.attempt, session.literal(row.origin)))
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
    ready: Ready,
) -> dict[int, int]:
    statements = load("sqlite")
    wanted = [row for rows in targets.values() for row in rows]
    with session.transaction() as database:
        heads, stored_at = {}, {}
        for queue in sorted(targets):
            head = {"queue": queue, "node_epoch": node_epoch}
            for found in database.execute(statements["lock_head"].text, head):
                heads[queue], stored_at[queue] = found
        (select,) = statements["select_delayed"].single({"rows": id_list(wanted)})
        rows = [DelayedRow(*row) for row in database.execute(select)]
        moves = _moves(targets, heads, rows, ready)
        moved = [row.id for move in moves for row in move.rows]
        for move in moves:
            at = stored_at[move.queue]
            raised = {"queue": move.queue, "message_count": len(move.rows), "stored_at": at}
            database.execute(statements["publish_raise"].text, raised)
            for offset, batch in enumerate(move.batches, move.head):
                known = {**batch._asdict(), "queue": move.queue, "first_offset": offset}
                values = {**known, "message_count": 1, "stored_at": at}
                database.execute(statements["publish_batch"].text, values)
            (insert,) = statements["move_rows"].single({"table": message_table(move.queue)})
            database.executemany(insert, _values(move, at))
        (delete,) = statements["delete_delayed"].single({"rows": id_list(moved)})
        if database.execute(delete).rowcount != len(moved):
            raise db_errors.RolledBack("The delayed messages changed meanwhile.")
    return {move.queue: move.end for move in moves}


def _values(move: _Move, stored_at_ms: int) -> list[tuple[object, ...]]:
    return [
        (offset, one.key, one.tag, headers_text(one.headers), one.body, one.trace_id,
        batch.producer,
         stored_at_ms, row.attempt, row.origin)
        for offset, (row, batch) in enumerate(zip(move.rows, move.batches, strict=True), move.head)
        for one in batch.messages
    ]  # fmt: skip
