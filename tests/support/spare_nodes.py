"""Node databases that one test after the other uses: emptied after each, instead of made
anew.

Registering a node proves rights by making and dropping tables, which takes longer than most
tests. So a database that was registered once is emptied after its test and given to a later
one. One that a test left in another shape than it had (a table altered, missing or still
locked) is dropped.
"""

from __future__ import annotations

import re
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import databases
from tests.support.mariadb import MariaDB

LOCK_S = 1  # that a table of a test that is over may stay locked
_COUNTER = re.compile(r"AUTO_INCREMENT=\d+ ?")


@dataclass
class NodeDatabase:
    """A database for a node: how to reach it, and its tables' shape once a node was
    registered on it.
    """

    given: dict[str, Any]
    shape: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """A cursor of a connection of its own, which commits at the end."""
        if self.given["engine"] == "sqlite":
            with (
                closing(sqlite3.connect(self.given["database"], timeout=LOCK_S)) as file,
                file,
            ):
                yield file.cursor()
            return
        import MySQLdb

        account = {"user": self.given["username"], "passwd": self.given["password"]}
        place = {
            "host": self.given["host"],
            "port": self.given["port"],
            "db": self.given["database"],
        }
        with closing(MySQLdb.connect(**account, **place, autocommit=True)) as connection:
            cursor = connection.cursor()
            cursor.execute(
                f"SET lock_wait_timeout = {LOCK_S}, innodb_lock_wait_timeout = {LOCK_S}"
            )
            yield cursor

    def registered(self) -> None:
        """Remember the shape that a registration gave it."""
        with self.cursor() as cursor:
            self.shape = self._shape(cursor)

    def renew(self) -> str:
        """Write a new identity into it, as a registration does; return it."""
        identity = str(uuid.uuid4())
        with self.cursor() as cursor:
            cursor.execute(f"INSERT INTO node_identity (identity) VALUES ('{identity}')")
        return identity

    def empty(self) -> bool:
        """Delete everything that a test left; False if the database cannot be as it was."""
        with self.cursor() as cursor:
            found = self._shape(cursor)
            for name in found.keys() - self.shape.keys():
                cursor.execute(f"DROP TABLE IF EXISTS {name}")
            if {name: found.get(name) for name in self.shape} != self.shape:
                return False
            for name in self.shape:
                cursor.execute(f"DELETE FROM {name}")
            self._count_anew(cursor)
        if self.given["engine"] == "sqlite":
            with closing(sqlite3.connect(self.given["database"], timeout=LOCK_S)) as file:
                # else rows fit into a file that a test keeps from growing
                file.execute("VACUUM")
        return True

    def _shape(self, cursor: Any) -> dict[str, str]:
        """{table: its definition}, without what it has counted."""
        if self.given["engine"] == "sqlite":
            cursor.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE%'"
            )
            return {
                name: sql
                for name, sql in cursor.fetchall()
                if not name.startswith("sqlite_")
            }
        cursor.execute("SHOW TABLES")
        shape = {}
        for (name,) in cursor.fetchall():
            cursor.execute(f"SHOW CREATE TABLE {name}")
            shape[name] = _COUNTER.sub("", cursor.fetchone()[1])
        cursor.execute("SHOW TRIGGERS")
        for _, _, table, text, *_ in cursor.fetchall():
            shape[table] += text
        return shape

    def _count_anew(self, cursor: Any) -> None:
        """Begin ids at 1 again."""
        if self.given["engine"] == "mysql":
            for name in (
                name
                for name, definition in self.shape.items()
                if "AUTO_INCREMENT" in definition
            ):
                cursor.execute(f"ALTER TABLE {name} AUTO_INCREMENT = 1")
            return
        cursor.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'")
        if cursor.fetchone():
            cursor.execute("DELETE FROM sqlite_sequence")


class SpareNodes:
    """The session's node databases on one engine; those that wait for the next test were
    emptied.

    A database on another engine is dropped after its test: its server may stop before the
    session ends.
    """

    def __init__(self, directory: Path, engine: str) -> None:
        self._directory = directory
        self._engine = engine
        self._waiting: list[NodeDatabase] = []
        self._made: dict[int, ExitStack] = {}

    def take(self, engine: str, server: MariaDB | None) -> NodeDatabase:
        """An emptied database, or a new one where none waits."""
        if engine == self._engine and self._waiting:
            return self._waiting.pop()
        stack = ExitStack()
        if server is None:
            made = NodeDatabase(stack.enter_context(databases.sqlite_node(self._directory)))
        else:
            made = NodeDatabase(stack.enter_context(databases.mysql_node(server)))
        self._made[id(made)] = stack
        return made

    def give_back(self, database: NodeDatabase) -> None:
        """Empty a database for the next test; drop it if that is not possible."""
        import MySQLdb

        try:
            mine = database.given["engine"] == self._engine
            reusable = mine and bool(database.shape) and database.empty()
        except (sqlite3.Error, MySQLdb.Error):  # locked, damaged, or its server is away
            reusable = False
        if reusable:
            self._waiting.append(database)
        else:
            self._made.pop(id(database)).close()

    def close(self) -> None:
        """Drop those that wait."""
        for database in self._waiting:
            self._made.pop(id(database)).close()
