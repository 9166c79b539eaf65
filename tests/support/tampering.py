"""What a crash, a promotion or retention would do to a queue, done behind the product's back."""

from __future__ import annotations

from typing import Any

from messagestore import connections


def remove(queue: int, *offsets: int) -> None:
    """Takes messages out of a table behind the product's back."""
    _behind_the_back(
        queue, f"DELETE FROM message_{queue} WHERE msg_offset IN ({','.join(map(str, offsets))})"
    )


def declare_gap(queue: int, first: int, end: int) -> None:
    """What a promotion writes."""
    _behind_the_back(queue, f"INSERT INTO queue_gap VALUES ({queue}, {first}, {end}, 'test')")


def raise_low(queue: int, low: int) -> None:
    """What retention does first."""
    _behind_the_back(queue, f"UPDATE queue_head SET low = {low} WHERE queue_id = {queue}")


def _behind_the_back(queue: int, statement: str) -> None:
    info = connections.node_of(queue).info
    connection: Any
    if info.engine == "sqlite":
        import sqlite3

        connection = sqlite3.connect(info.database, isolation_level=None)
        connection.execute(statement)
    else:
        import MySQLdb

        account = {"host": info.host, "port": info.port, "user": info.username, "password": info.password}
        connection = MySQLdb.connect(**account, database=info.database, autocommit=True)
        connection.cursor().execute(statement)
    connection.close()
