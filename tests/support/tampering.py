"""Effects of a crash, a promotion or retention on a queue, written directly into its
tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from messagestore.pool import node_pools


def remove(queue: int, *offsets: int) -> None:
    """Delete messages directly from a table."""
    _execute(
        queue,
        f"DELETE FROM message_{queue} WHERE msg_offset IN ({','.join(map(str, offsets))})",
    )


def declare_gap(queue: int, first: int, end: int) -> None:
    """Insert the row that a promotion writes."""
    _execute(queue, f"INSERT INTO queue_gap VALUES ({queue}, {first}, {end}, 'test')")


def raise_low(queue: int, low: int) -> None:
    """Raise the log start offset, as retention does first."""
    _execute(queue, f"UPDATE queue_head SET low = {low} WHERE queue_id = {queue}")


def readers(queue: int) -> list[tuple[Any, ...]]:
    """Return the reader rows of a queue: (group id, instance, epoch, owner, committed)."""
    columns = "group_id, instance, epoch, owner, committed"
    return _execute(
        queue,
        f"SELECT {columns} FROM reader WHERE queue_id = {queue} ORDER BY group_id, instance",
    )


def plant(queue: int, *statements: str) -> None:
    """Run statements on the queue's node. `{q}` is replaced by the queue's id."""
    for statement in statements:
        _execute(queue, statement.replace("{q}", str(queue)))


def look(queue: int, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a SELECT on the queue's node. `{q}` is replaced by the queue's id."""
    return list(_execute(queue, statement.replace("{q}", str(queue))))


def age(queue: int, first: int, end: int, *, seconds: int) -> None:
    """Make the messages at offsets first … end - 1, and batches that begin there, `seconds`
    older.
    """
    on_sqlite = node_pools.node_of(queue).info.engine == "sqlite"
    older = (
        f"stored_at - {seconds * 1000}"
        if on_sqlite
        else f"stored_at - INTERVAL {seconds} SECOND"
    )
    within = f">= {first} AND {{column}} < {end}"
    plant(
        queue,
        f"UPDATE message_{{q}} SET stored_at = {older} WHERE msg_offset "
        f"{within.format(column='msg_offset')}",
        f"UPDATE sent_batch SET stored_at = {older} "
        f"WHERE queue_id = {{q}} AND first_offset {within.format(column='first_offset')}",
    )


@dataclass
class Saved:
    """Saved rows of tables: (a queue of the node, table) → rows."""

    rows: dict[tuple[int, str], list[tuple[Any, ...]]]

    def put_back(self) -> None:
        """Restore the tables, each node in a single transaction."""
        for queue, tables in groupby(self.rows, key=lambda place: place[0]):
            connection = _connection(queue)
            cursor = connection.cursor()
            # Brokers that use the node see either state, never an empty table.
            cursor.execute("BEGIN")
            for place in tables:
                _refill(cursor, place[1], self.rows[place], mark=_placeholder(queue))
            cursor.execute("COMMIT")
            connection.close()


def save(places: Iterable[tuple[int, str]]) -> Saved:
    """Save tables, each given by a queue of its node and its name."""
    return Saved(
        {(queue, table): look(queue, f"SELECT * FROM {table}") for queue, table in places}
    )


def _refill(cursor: Any, table: str, rows: list[tuple[Any, ...]], *, mark: str) -> None:
    cursor.execute(f"DELETE FROM {table}")
    if rows:
        marks = ", ".join([mark] * len(rows[0]))
        cursor.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


@contextmanager
def looking(queue: int) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
    """Yield a function that runs SELECTs on the queue's node, on a single connection."""
    connection = _connection(queue)

    def ask(statement: str) -> list[tuple[Any, ...]]:
        cursor = connection.cursor()
        cursor.execute(statement)
        return list(cursor.fetchall())

    try:
        yield ask
    finally:
        connection.close()


def _placeholder(queue: int) -> str:
    return "?" if node_pools.node_of(queue).info.engine == "sqlite" else "%s"


def _connection(queue: int) -> Any:
    info = node_pools.node_of(queue).info
    if info.engine == "sqlite":
        import sqlite3

        # Without isolation_level=None, Python would begin transactions of its own.
        return sqlite3.connect(info.database, isolation_level=None)
    import MySQLdb

    account = {
        "host": info.host,
        "port": info.port,
        "user": info.username,
        "password": info.password,
    }
    return MySQLdb.connect(**account, database=info.database, autocommit=True)


def _execute(queue: int, statement: str) -> list[tuple[Any, ...]]:
    connection = _connection(queue)
    cursor = connection.cursor()
    cursor.execute(statement)
    rows = cursor.fetchall()
    connection.close()
    return list(rows)
