"""Verbs of partitions, which only MySQL and MariaDB have, and of retention."""

from __future__ import annotations

from collections.abc import Sequence

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import MySqlSession, Session
from messagestore.tables.shapes import LongTransaction, Partition
from messagestore.tables.sql_steps import fetch_rows, message_table, processlist, step


def list_partitions(session: Session, *, queue: int) -> list[Partition]:
    """A queue's partitions in rising order; none where its table has none: SQLite, or an
    earlier version.

    Raises `db_errors.Altered` for a table that is missing, or that somebody has partitioned
    in another way.
    """
    if session.engine == "sqlite":
        return []
    table = message_table(queue)
    rows = fetch_rows(session, "select_partitions", table_name=table)
    if not rows:
        raise db_errors.Altered(f"Table {table} is missing.")
    found: list[Partition] = []
    for name, method, bound, size in rows:
        if name is None:
            return []
        if method != "RANGE" or not str(bound).isdigit():
            what = f"partition {name} is {method} {bound}, not a range of offsets"
            raise db_errors.Altered(f"Table {table} was altered: {what}.")
        found.append(Partition(name, found[-1].end if found else 0, int(bound), int(size)))
    return found


def add_partitions(session: Session, *, queue: int, ends: Sequence[int]) -> None:
    """Add partitions above the last one; each holds what is below its end."""
    made = ", ".join(f"PARTITION below_{end:d} VALUES LESS THAN ({end:d})" for end in ends)
    session.run(
        step(session, "add_partitions", table=message_table(queue), partitions=made)
    )


def drop_partition(session: Session, *, queue: int, name: str) -> None:
    quoted = f"`{name.replace('`', '``')}`"
    session.run(
        step(session, "drop_partition", table=message_table(queue), partition=quoted)
    )


def limit_lock_wait(session: Session) -> None:
    """From now on this session waits a second at most for a table: so long it may hold up
    those behind it.
    """
    session.run(step(session, "limit_lock_wait"))


def take_table_lock(session: Session, *, table: str, seconds: int) -> bool:
    """Return True if this session is the one that may change the table, until it is closed."""
    rows = fetch_rows(session, "take_table_lock", table_name=table, seconds=seconds)
    return bool(rows[0][0] == 1)


def list_long_transactions(session: Session, *, seconds: int) -> list[LongTransaction]:
    """Transactions in the node's database that have run for so long, the oldest first.

    None where the account may not see them (it lacks the right PROCESS).
    """
    try:
        table = processlist(session)
        rows = fetch_rows(
            session, "select_long_transactions", processlist=table, seconds=seconds
        )
    except db_errors.Final:
        return []
    return [LongTransaction(*row) for row in rows]


_TABLESPACES = {"mariadb": "INNODB_SYS_TABLESPACES", "mysql": "INNODB_TABLESPACES"}


def raise_low(session: Session, *, queue: int, low: int) -> bool:
    """Say that nothing below an offset is served any more; whether that was news, and not
    above the head.
    """
    return (
        session.transact(step(session, "raise_low", queue=queue, low=low))[0].matched == 1
    )


def delete_below(session: Session, *, queue: int, end: int) -> int:
    """Delete the messages below an offset and below the queue's `low`; how many."""
    values = {"table": message_table(queue), "queue": queue, "end_offset": end}
    return session.transact(step(session, "delete_below", **values))[0].matched


def measure_rows(session: Session, *, queue: int, first: int, end: int) -> tuple[int, int]:
    """(messages, bytes of what they hold) at offsets first … end-1; keep the range short."""
    table = message_table(queue)
    rows, size = fetch_rows(
        session, "select_row_bytes", table=table, first_offset=first, end_offset=end
    )[0]
    return int(rows), int(size)


def read_queue_bytes(session: Session) -> dict[int, int]:
    """{queue id: bytes of its table, with indexes, as the statistics say}; MySQL and
    MariaDB only.
    """
    return {
        int(queue): int(size) for queue, size in fetch_rows(session, "select_queue_sizes")
    }


def read_used_bytes(session: Session) -> tuple[int, int]:
    """(bytes that the node's files take, bytes within them that new messages can have)."""
    if not isinstance(session, MySqlSession):
        size, free = fetch_rows(session, "select_file_size")[0]
        return int(size), int(free)
    try:
        view = _TABLESPACES[session.flavour]
        return int(fetch_rows(session, "select_tablespaces", view=view)[0][0]), 0
    except db_errors.Final:  # the account lacks the right PROCESS
        return int(fetch_rows(session, "select_table_sizes")[0][0]), 0
