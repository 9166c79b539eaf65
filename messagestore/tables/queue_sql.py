"""Statements for queues: their tables, heads, states and declared gaps."""

from __future__ import annotations

from collections.abc import Sequence

from messagestore.engine.mysql_session import Session, Step
from messagestore.tables.shapes import Head
from messagestore.tables.shares import position_sql
from messagestore.tables.sql_steps import fetch_rows, id_list, message_table, step
from metadata.rules.nodes import Engine

KEY_INDEX = ",\n    KEY message_key (msg_key)"  # in CREATE TABLE, on MySQL and MariaDB


def create_queue(
    session: Session,
    *,
    queue: int,
    node_epoch: int,
    unused: bool = False,
    comment: str = "",
    key_index: bool = False,
) -> bool:
    """Create a queue's table and head row. Harmless if they exist.

    With `unused`, return False and leave the head row as it is if a message was ever stored
    in the queue. `comment` is the table comment, which a DBA sees on MySQL and MariaDB.
    `key_index`: a new table has an index on the keys of messages.
    """
    results = session.run(*_table_steps(session, queue, comment, key_index=key_index))
    if unused and results[-1].rows[0][0]:
        return False
    if key_index and session.engine == Engine.SQLITE:
        # SQLite's CREATE TABLE cannot contain an index.
        session.transact(step(session, "add_key_index", table=message_table(queue)))
    # After the table: a queue with a head row accepts writes.
    session.transact(step(session, "insert_head", queue=queue, node_epoch=node_epoch))
    return True


def _table_steps(
    session: Session, queue: int, comment: str = "", *, key_index: bool = False
) -> tuple[Step, Step]:
    """Return steps that create a queue's table, and select whether it ever had a message."""
    table = message_table(queue)
    columns = {"comment": comment, "key_index": KEY_INDEX if key_index else ""}
    return (
        step(session, "create_message_table", table=table, **columns),
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


def has_key_index(session: Session, *, queue: int) -> bool:
    """Return True if the definition of a queue's table has the key index.

    On MariaDB, a crash may have left the definition without the index in a partition:
    see `find_partitions_without_index`.
    """
    return bool(fetch_rows(session, "select_key_index", table_name=message_table(queue)))


def add_key_index(session: Session, *, queue: int) -> None:
    """Build the index on the keys of a queue's messages.

    Senders wait only for its begin and its end on MySQL and MariaDB, for all of it on SQLite.
    """
    _change_index(session, step(session, "add_key_index", table=message_table(queue)))


def drop_key_index(session: Session, *, queue: int) -> None:
    _change_index(session, step(session, "drop_key_index", table=message_table(queue)))


def _change_index(session: Session, change: Step) -> None:
    # On MySQL the change commits by itself. On SQLite it needs the file's write lock.
    if session.engine == Engine.SQLITE:
        session.transact(change)
    else:
        session.run(change)


def is_galera(session: Session) -> bool:
    """Return True if the server is a node of a Galera cluster, which runs each ALTER TABLE
    on all its servers at once and lets all writes wait for it.
    """
    return session.engine == Engine.MYSQL and replicates_writesets(
        fetch_rows(session, "select_wsrep")
    )


def replicates_writesets(variables: Sequence[tuple[str, str]]) -> bool:
    """Return True if a server's variables say that it is a node of a Galera cluster.

    >>> replicates_writesets([("wsrep_on", "ON")])
    True
    >>> replicates_writesets([("wsrep_on", "OFF")]), replicates_writesets([])
    (False, False)
    """
    return dict(variables).get("wsrep_on", "OFF") == "ON"


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
