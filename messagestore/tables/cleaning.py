"""Verbs of retention and of the guard against a full disk."""

from __future__ import annotations

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import MySqlSession, Session
from messagestore.tables.running import message_table, rows_of, step

_TABLESPACES = {"mariadb": "INNODB_SYS_TABLESPACES", "mysql": "INNODB_TABLESPACES"}


def raise_low(session: Session, *, queue: int, low: int) -> bool:
    """Says that nothing below an offset is served any more; whether that was news, and not above the head."""
    return session.transact(step(session, "raise_low", queue=queue, low=low))[0].matched == 1


def delete_below(session: Session, *, queue: int, end: int) -> int:
    """Deletes the messages below an offset and below the queue's `low`; how many."""
    values = {"table": message_table(queue), "queue": queue, "end_offset": end}
    return session.transact(step(session, "delete_below", **values))[0].matched


def row_bytes(session: Session, *, queue: int, first: int, end: int) -> tuple[int, int]:
    """(messages, bytes of what they hold) at offsets first … end-1; keep the range short."""
    table = message_table(queue)
    rows, size = rows_of(session, "select_row_bytes", table=table, first_offset=first, end_offset=end)[0]
    return int(rows), int(size)


def used_bytes(session: Session) -> tuple[int, int]:
    """(bytes that the node's files take, bytes within them that new messages can have)."""
    if not isinstance(session, MySqlSession):
        size, free = rows_of(session, "select_file_size")[0]
        return int(size), int(free)
    try:
        view = _TABLESPACES[session.flavour]
        return int(rows_of(session, "select_tablespaces", view=view)[0][0]), 0
    except db_errors.Final:  # the account lacks the right PROCESS
        return int(rows_of(session, "select_table_sizes")[0][0]), 0
