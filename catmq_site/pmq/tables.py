"""Rows of their metadata database. Nothing is written there: the session is read-only.

Both products have the same tables; versions differ by columns. Those without which nothing
can be made are required, others are None where they are missing.
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

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 60
NEEDED = {
    "topic": ("id", "name", "topic_type"),
    "queue": ("id", "topic_id", "read_only", "db_node_id"),
    "consumer_group": ("id", "name", "mode"),
    "consumer_group_topic": ("consumer_group_id", "topic_id", "topic_name", "topic_type"),
    "queue_offset": ("consumer_group_id", "topic_id", "topic_type", "queue_id", "offset"),
}
UNREACHABLE = range(2000, 3000)  # numbers of errors of the driver: no connection
REMEDY = "give the URL of the metadata database, which PMQ calls mq_basic"

Row = dict[str, Any]


@dataclass(frozen=True)
class Tables:
    """All active rows, by rising id."""

    topics: list[Row]
    queues: list[Row]
    groups: list[Row]
    subscriptions: list[Row]
    offsets: list[Row]


def read(url: str) -> Tables:
    """Return the rows of a database. Raises Invalid for another one, Unavailable if it does
    not answer.
    """
    try:
        where = parse_database_url(url)
    except ConfigError as error:
        raise Invalid.field("--from", str(error)) from None
    with _session(where) as cursor:
        found = {
            table: _rows(cursor, table, needed, where) for table, needed in NEEDED.items()
        }
    return Tables(*found.values())


@contextmanager
def _session(where: Database) -> Iterator[Any]:
    mode = where.encryption.mode or "off"
    try:
        tls.check_driver(mode, where.host, get_client_info(), os.environ)
        raw = connect(
            host=where.host,
            port=where.port,
            user=where.username,
            password=where.password,
            database=where.name,
            charset="utf8mb4",
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            **tls.connect_arguments(mode, where.encryption.ca),
        )
    except (Error, tls.Refused) as error:
        raise _told(error, where) from None
    with closing(raw):
        if tls.is_plain(mode, raw.server_capabilities):
            raise Invalid.field("--from", str(tls.PlainText().args[1]))
        try:
            with closing(raw.cursor(DictCursor)) as cursor:
                # One snapshot, and nothing can be written by mistake.
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
                yield cursor
        except Error as error:
            raise _told(error, where) from None


def _rows(cursor: Any, table: str, needed: tuple[str, ...], where: Database) -> list[Row]:
    cursor.execute("SHOW TABLES LIKE %s", (table,))
    if not cursor.fetchall():
        raise Invalid.field(
            "--from", f"database {where.name} has no table {table}: {REMEDY}"
        )
    cursor.execute(f"SHOW COLUMNS FROM `{table}`")  # a name of NEEDED
    columns = {str(row["Field"]) for row in cursor.fetchall()}
    if missing := [name for name in needed if name not in columns]:
        said = (
            f"table {table} of database {where.name} has no column "
            f"{', '.join(missing)}: {REMEDY}"
        )
        raise Invalid.field("--from", said)
    active = " WHERE is_active = 0" if "is_active" in columns else ""  # 1 is deleted there
    cursor.execute(f"SELECT * FROM `{table}`{active} ORDER BY 1")  # noqa: S608  a name of NEEDED
    return [dict(row) for row in cursor.fetchall()]


def _told(error: Exception, where: Database) -> Invalid | Unavailable:
    """Return the error without the account, whose password may be in a text of the driver."""
    said = str(error.args[-1]) if error.args else str(error)
    place = f"{where.host}:{where.port}/{where.name}"
    advice = tls.find_remedy(error, host=where.host, ca=where.encryption.ca)
    if error.args and error.args[0] in UNREACHABLE and not advice:
        return Unavailable(f"{place} does not answer: {said}", retry_after_ms=1_000)
    return Invalid.field("--from", f"{place}: {said}{f'. {advice}' if advice else ''}")


def text(row: Mapping[str, Any], column: str) -> str:
    """Return a text without blanks around it, '' for NULL or a column that is missing."""
    return str(row.get(column) or "").strip()


def number(row: Mapping[str, Any], column: str, default: int) -> int:
    value = row.get(column)
    return default if value is None else int(value)
