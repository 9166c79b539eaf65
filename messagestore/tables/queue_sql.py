"""Statements for queues: their tables, heads, states and declared gaps."""

from __future__ import annotations

from collections.abc import Sequence

from messagestore.engine.mysql_session import Session, Step
from messagestore.tables.shapes import Head
from messagestore.tables.shares import position_sql
from messagestore.tables.sql_steps import fetch_rows, id_list, message_table, step


def create_queue(
    session: Session,
    *,
    queue: int,
    node_epoch: int,
    unused: bool = False,
    comment: str = "",
) -> bool:
    """Create a queue's table and head row. Harmless if they exist.

    With `unused`, return False and leave the head row as it is if a message was ever stored
    in the queue. `comment` is the table comment, which a DBA sees on MySQL and MariaDB.
    """
    results = session.run(*_table_steps(session, queue, comment))
    if unused and results[-1].rows[0][0]:
        return False
    # After the table: a queue with a head row accepts writes.
    session.transact(step(session, "insert_head", queue=queue, node_epoch=node_epoch))
    return True


def _table_steps(session: Session, queue: int, comment: str = "") -> tuple[Step, Step]:
    """Return steps that create a queue's table, and select whether it ever had a message."""
    table = message_table(queue)
    return (
        step(session, "create_message_table", table=table, comment=comment),
        step(session, "select_used", table=table, queue=queue),
    )


def drop_queue(session: Session, *, queue: int, unused: bool = False) -> None:
    """Delete a queue's table and its rows in other tables. Harmless if they are gone.

    With `unused`, do nothing if a message was ever stored in the queue.
    """
    if unused and session.run(*_table_steps(session, queue))[-1].rows[0][0]:
        return
    session.transact(
        # The head goes first: without it no write to the queue can begin.
        step(session, "delete_head", queue=queue),
        step(session, "delete_queue_readers", queue=queue),
    )
    # DROP TABLE commits by itself on MySQL, so it cannot be part of the transaction.
    session.run(step(session, "drop_message_table", table=message_table(queue)))
    position_sql.delete_queue_shares(session, queue=queue)


def set_queue_state(session: Session, *, queue: int, state: str) -> None:
    session.transact(step(session, "update_queue_state", queue=queue, state=state))


def close_queues(session: Session) -> None:
    """Close every open queue of the node. No write can begin after this returns."""
    session.transact(step(session, "close_heads"))


def open_queues(session: Session, *, queues: Sequence[int]) -> None:
    """Open those of `queues` that are closed. Retired queues stay retired."""
    if queues:
        session.transact(step(session, "open_heads", queues=id_list(queues)))


def read_head(session: Session, *, queue: int) -> Head | None:
    rows = session.run(step(session, "select_head", queue=queue))[-1].rows
    return Head(*rows[0]) if rows else None


def read_heads(session: Session, *, queues: Sequence[int] | None) -> dict[int, int]:
    """Return {queue: log end offset} of some queues, or of all queues of the node."""
    if queues is None:
        return dict(fetch_rows(session, "select_all_heads"))
    return (
        dict(fetch_rows(session, "select_heads", queues=id_list(queues))) if queues else {}
    )


def read_recent_heads(session: Session, *, seconds: int) -> dict[int, int]:
    """Return {queue: log end offset} of queues that got a message in the last `seconds`, by
    the node's clock.
    """
    return dict(fetch_rows(session, "select_recent_heads", seconds=seconds))


def read_closed(session: Session) -> dict[int, str]:
    """Return {queue: state} of every queue of the node that is closed for writers."""
    return dict(fetch_rows(session, "select_closed_heads"))


def delete_queue_readers(session: Session, *, queue: int) -> None:
    """Delete the positions and leases of all groups in a queue."""
    session.transact(step(session, "delete_queue_readers", queue=queue))
    position_sql.delete_queue_shares(session, queue=queue)


def read_gaps(session: Session, *, queue: int, position: int) -> list[tuple[int, int]]:
    """Return declared gaps (from, to) that end above a position, in rising order.

    `to` is exclusive.
    """
    rows = session.run(step(session, "select_gaps", queue=queue, position=position))[
        -1
    ].rows
    return [(first, end) for first, end in rows]
