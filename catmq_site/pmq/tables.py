"""Reads rows of the other product's metadata database. The session is read-only.

PMQ and the Java CatMQ have the same tables; their versions differ by columns. Columns
without which nothing can be imported are required; others count as NULL where they are
missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from MySQLdb import Error, connect, get_client_info
from MySQLdb.cursors import DictCursor

from metadata.config import ConfigError, Database, parse_database_url
from metadata.errors import Invalid, Unavailable
from metadata.rules import tls
from metadata.rules.tls import TlsMode

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 60
REQUIRED_COLUMNS = {
    "topic": ("id", "name", "topic_type"),
    "queue": ("id", "topic_id", "read_only", "db_node_id"),
    "consumer_group": ("id", "name", "mode"),
    "consumer_group_topic": ("consumer_group_id", "topic_id", "topic_name", "topic_type"),
    "queue_offset": ("consumer_group_id", "topic_id", "topic_type", "queue_id", "offset"),
}
CONNECTION_ERRORS = range(2000, 3000)  # error numbers of the client library
REMEDY = "give the URL of the metadata database, which PMQ calls mq_basic"

Row = dict[str, Any]


@dataclass(frozen=True)
class Tables:
    """All active rows, by ascending id."""

    topics: list[Row]
    queues: list[Row]
    groups: list[Row]
    subscriptions: list[Row]
    offsets: list[Row]


def read_tables(url: str) -> Tables:
    """Return the rows of a database. Raises Invalid if it is not such a database,
    Unavailable if it does not answer.
    """
    try:
        database = parse_database_url(url)
    except ConfigError as error:
        raise Invalid.field("--from", str(error)) from None
    with _open_snapshot(database) as cursor:
        rows_of_table = {
            table: _read_rows(cursor, table, required, database)
            for table, required in REQUIRED_COLUMNS.items()
        }
    return Tables(*rows_of_table.values())


@contextmanager
def _open_snapshot(database: Database) -> Iterator[Any]:
    mode = database.encryption.mode or TlsMode.OFF
    try:
        tls.check_driver(mode, database.host, get_client_info(), os.environ)
        raw = connect(
            host=database.host,
            port=database.port,
            user=database.username,
            password=database.password,
            database=database.name,
            charset="utf8mb4",
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            **tls.connect_arguments(mode, database.encryption.ca),
        )
    except (Error, tls.Refused) as error:
        raise _convert_error(error, database) from None
    with closing(raw):
        if tls.is_plain(mode, raw.server_capabilities):
            raise Invalid.field("--from", str(tls.PlainText().args[1]))
        try:
            with closing(raw.cursor(DictCursor)) as cursor:
                # All tables are read from the same snapshot, and READ ONLY forbids writes.
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
                yield cursor
        except Error as error:
            raise _convert_error(error, database) from None


def _read_rows(
    cursor: Any, table: str, required: tuple[str, ...], database: Database
) -> list[Row]:
    cursor.execute("SHOW TABLES LIKE %s", (table,))
    if not cursor.fetchall():
        raise Invalid.field(
            "--from", f"database {database.name} has no table {table}: {REMEDY}"
        )
    cursor.execute(f"SHOW COLUMNS FROM `{table}`")  # a key of REQUIRED_COLUMNS
    columns = {str(row["Field"]) for row in cursor.fetchall()}
    if missing := [name for name in required if name not in columns]:
        text = (
            f"table {table} of database {database.name} has no column "
            f"{', '.join(missing)}: {REMEDY}"
        )
        raise Invalid.field("--from", text)
    # Deleted rows stay in the tables there, with is_active = 1.
    active = " WHERE is_active = 0" if "is_active" in columns else ""
    cursor.execute(f"SELECT * FROM `{table}`{active} ORDER BY 1")  # noqa: S608  a key of REQUIRED_COLUMNS
    return [dict(row) for row in cursor.fetchall()]


def _convert_error(error: Exception, database: Database) -> Invalid | Unavailable:
    """Convert an error of the driver. The account is left out: a driver's text may hold its
    password.
    """
    message = str(error.args[-1]) if error.args else str(error)
    address = f"{database.host}:{database.port}/{database.name}"
    remedy = tls.find_remedy(error, host=database.host, ca=database.encryption.ca)
    if error.args and error.args[0] in CONNECTION_ERRORS and not remedy:
        return Unavailable(f"{address} does not answer: {message}", retry_after_ms=1_000)
    return Invalid.field("--from", f"{address}: {message}{f'. {remedy}' if remedy else ''}")


def text(row: Mapping[str, Any], column: str) -> str:
    """Return a text without surrounding blanks, '' for NULL or a missing column."""
    return str(row.get(column) or "").strip()


def number(row: Mapping[str, Any], column: str, default: int) -> int:
    value = row.get(column)
    return default if value is None else int(value)
