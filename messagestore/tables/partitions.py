"""Verbs on the partitions of message tables; only MySQL and MariaDB have any."""

from __future__ import annotations

from collections.abc import Sequence

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.tables.running import message_table, rows_of, step
from messagestore.tables.shapes import LongTransaction, Partition


def list_partitions(session: Session, *, queue: int) -> list[Partition]:
    """A queue's partitions in rising order; none where its table has none: SQLite, or an earlier version.

    Raises `faults.Altered` for a table that is missing, or that somebody has partitioned in another way.
    """
    if session.engine == "sqlite":
        return []
    table = message_table(queue)
    rows = rows_of(session, "select_partitions", table_name=table)
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
    """Adds partitions above the last one; each holds what is below its end."""
    made = ", ".join(f"PARTITION below_{end:d} VALUES LESS THAN ({end:d})" for end in ends)
    session.run(step(session, "add_partitions", table=message_table(queue), partitions=made))


def drop_partition(session: Session, *, queue: int, name: str) -> None:
    """Drops a partition with all that is in it."""
    quoted = f"`{name.replace('`', '``')}`"
    session.run(step(session, "drop_partition", table=message_table(queue), partition=quoted))


def limit_lock_wait(session: Session) -> None:
    """From now on this session waits a second at most for a table: so long it may hold up those behind it."""
    session.run(step(session, "limit_lock_wait"))


def take_table_lock(session: Session, *, queue: int, seconds: int) -> bool:
    """Return True if this session is the one that may change the queue's table, until it is closed."""
    rows = rows_of(session, "take_table_lock", table_name=message_table(queue), seconds=seconds)
    return bool(rows[0][0] == 1)


def long_transactions(session: Session, *, seconds: int) -> list[LongTransaction]:
    """Transactions in the node's database that have run for so long, the oldest first.

    None where the account may not see them (it lacks the right PROCESS).
    """
    try:
        rows = rows_of(session, "select_long_transactions", seconds=seconds)
    except db_errors.Final:
        return []
    return [LongTransaction(*row) for row in rows]
