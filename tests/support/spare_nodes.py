"""Node databases that tests use in turn: emptied after each test, not created again.

Registering a node checks rights by creating and dropping tables, which takes longer than
most tests. So a registered database is emptied after its test and given to a later test. A
database whose tables a test altered, dropped or left locked is dropped.
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

LOCK_S = 1  # for which a table may stay locked after its test
_COUNTER = re.compile(r"AUTO_INCREMENT=\d+ ?")


@dataclass
class NodeDatabase:
    """A database for a node: the arguments to reach it, and its table definitions after
    registration.
    """

    given: dict[str, Any]
    shape: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """Yield a cursor of a connection of its own, which commits at the end."""
        if self.given["engine"] == "sqlite":
            with (
                closing(sqlite3.connect(self.given["database"], timeout=LOCK_S)) as file,
                file,
            ):
                yield file.cursor()
            return
        import MySQLdb

        account = {"user": self.given["username"], "passwd": self.given["password"]}
        address = {
            "host": self.given["host"],
            "port": self.given["port"],
            "db": self.given["database"],
        }
        with closing(MySQLdb.connect(**account, **address, autocommit=True)) as connection:
            cursor = connection.cursor()
            cursor.execute(
                # A table that the test left locked must fail quickly: then the database is
                # dropped.
                f"SET lock_wait_timeout = {LOCK_S}, innodb_lock_wait_timeout = {LOCK_S}"
            )
            yield cursor

    def registered(self) -> None:
        """Save the table definitions after a registration."""
        with self.cursor() as cursor:
            self.shape = self._shape(cursor)

    def renew(self) -> str:
        """Write a new identity, as a registration does, and return it."""
        identity = str(uuid.uuid4())
        with self.cursor() as cursor:
            cursor.execute(f"INSERT INTO node_identity (identity) VALUES ('{identity}')")
        return identity

    def empty(self) -> bool:
        """Delete everything that a test left. Return False if the tables have changed."""
        with self.cursor() as cursor:
            shape = self._shape(cursor)
            for name in shape.keys() - self.shape.keys():
                cursor.execute(f"DROP TABLE IF EXISTS {name}")
            # An altered table is not repaired: the caller drops the database.
            if {name: shape.get(name) for name in self.shape} != self.shape:
                return False
            for name in self.shape:
                # TRUNCATE would create each file again, which takes longer than deleting
                # few rows.
                cursor.execute(f"DELETE FROM {name}")
            self._reset_counters(cursor)
        if self.given["engine"] == "sqlite":
            with closing(sqlite3.connect(self.given["database"], timeout=LOCK_S)) as file:
                # A test that keeps the file from growing needs a file without free pages.
                file.execute("VACUUM")
        return True

    def _shape(self, cursor: Any) -> dict[str, str]:
        """Return the definition of each table, without counters."""
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
        # A trigger that a test left counts as a changed table.
        for _, _, table, text, *_ in cursor.fetchall():
            shape[table] += text
        return shape

    def _reset_counters(self, cursor: Any) -> None:
        """Make new ids start at 1 again."""
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
    """The session's node databases on an engine. Spare databases are empty.

    A database on another engine is dropped after its test, because its server may stop
    before the session ends.
    """

    def __init__(self, directory: Path, engine: str) -> None:
        self._directory = directory
        self._engine = engine
        self._spare: list[NodeDatabase] = []
        self._stacks: dict[int, ExitStack] = {}

    def take(self, engine: str, server: MariaDB | None) -> NodeDatabase:
        """Return an empty database, a new database if there is no spare."""
        if engine == self._engine and self._spare:
            return self._spare.pop()
        stack = ExitStack()
        if server is None:
            database = NodeDatabase(
                stack.enter_context(databases.sqlite_node(self._directory))
            )
        else:
            database = NodeDatabase(stack.enter_context(databases.mysql_node(server)))
        self._stacks[id(database)] = stack
        return database

    def give_back(self, database: NodeDatabase) -> None:
        """Empty a database for the next test. Drop it if that is not possible."""
        import MySQLdb

        try:
            is_own_engine = database.given["engine"] == self._engine
            reusable = is_own_engine and bool(database.shape) and database.empty()
        except (
            sqlite3.Error,
            MySQLdb.Error,
        ):  # locked, damaged, or its server is unavailable
            reusable = False
        if reusable:
            self._spare.append(database)
        else:
            self._stacks.pop(id(database)).close()

    def close(self) -> None:
        """Drop the spare databases."""
        for database in self._spare:
            self._stacks.pop(id(database)).close()
