"""Verbs on queues: their tables, heads, states and declared gaps."""

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
    """Make a queue's table and head row; harmless when they exist.

    `unused`: return False, and leave the head row as it is, if a message was ever stored in
    the queue.
    `comment`: what a DBA reads of a new table on MySQL and MariaDB.
    """
    made = session.run(*_table_steps(session, queue, comment))
    if unused and made[-1].rows[0][0]:
        return False
    session.transact(step(session, "insert_head", queue=queue, node_epoch=node_epoch))
    return True


def _table_steps(session: Session, queue: int, comment: str = "") -> tuple[Step, Step]:
    """Make a queue's table unless it exists, and ask whether a message was ever stored in
    the queue.
    """
    table = message_table(queue)
    return (
        step(session, "create_message_table", table=table, comment=comment),
        step(session, "select_used", table=table, queue=queue),
    )


def drop_queue(session: Session, *, queue: int, unused: bool = False) -> None:
    """Remove a queue's table, and its rows in other tables; harmless when they are gone.

    `unused`: not if a message was ever stored in the queue. The head goes first: from then
    on no write can begin.
    """
    if unused and session.run(*_table_steps(session, queue))[-1].rows[0][0]:
        return
    session.transact(
        step(session, "delete_head", queue=queue),
        step(session, "delete_queue_readers", queue=queue),
    )
    session.run(step(session, "drop_message_table", table=message_table(queue)))
    position_sql.delete_queue_shares(session, queue=queue)


def set_queue_state(session: Session, *, queue: int, state: str) -> None:
    session.transact(step(session, "update_queue_state", queue=queue, state=state))


def close_queues(session: Session) -> None:
    """Close every open queue of the node for writers; no write can begin once this has
    ended.
    """
    session.transact(step(session, "close_heads"))


def open_queues(session: Session, *, queues: Sequence[int]) -> None:
    """Open those of `queues` that are closed, not those that are retired."""
    if queues:
        session.transact(step(session, "open_heads", queues=id_list(queues)))


def read_head(session: Session, *, queue: int) -> Head | None:
    rows = session.run(step(session, "select_head", queue=queue))[-1].rows
    return Head(*rows[0]) if rows else None


def read_heads(session: Session, *, queues: Sequence[int] | None) -> dict[int, int]:
    """{queue: head} of some queues, or of all of the node."""
    if queues is None:
        return dict(fetch_rows(session, "select_all_heads"))
    return (
        dict(fetch_rows(session, "select_heads", queues=id_list(queues))) if queues else {}
    )


def read_recent_heads(session: Session, *, seconds: int) -> dict[int, int]:
    """{queue: head} of the queues of the node that were stored to within so many seconds,
    by its clock.
    """
    return dict(fetch_rows(session, "select_recent_heads", seconds=seconds))


def read_closed(session: Session) -> dict[int, str]:
    """{queue: state} of every queue of the node that is closed for writers."""
    return dict(fetch_rows(session, "select_closed_heads"))


def delete_queue_readers(session: Session, *, queue: int) -> None:
    """Delete the positions of all groups in a queue."""
    session.transact(step(session, "delete_queue_readers", queue=queue))
    position_sql.delete_queue_shares(session, queue=queue)


def read_gaps(session: Session, *, queue: int, position: int) -> list[tuple[int, int]]:
    """Declared gaps (from, to) that end above a position, in rising order; `to` is
    exclusive.
    """
    rows = session.run(step(session, "select_gaps", queue=queue, position=position))[
        -1
    ].rows
    return [(first, end) for first, end in rows]
