"""The database's clock. All times in metadata are set and compared by this clock, in UTC,
because the clocks of brokers differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import DateTimeField, Func

from metadata.models import ChangeCounter


class UtcNow(Func):
    """The database's UTC time inside a query. Django's Now() returns MySQL's session time
    zone.
    """

    arity = 0
    output_field = DateTimeField()

    def as_mysql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """Microseconds on MySQL and MariaDB."""
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **extra)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """Milliseconds on SQLite."""
        # Each % is escaped twice: by Func's template and by the parameters of execute().
        return self.as_sql(
            compiler,
            connection,
            template="STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', 'NOW')",
            **extra,
        )


# For statements in plain SQL. Loops run them all the time, and building a query set or
# model objects costs more than the query. Here % is escaped once, for execute().
_NOW = {"mysql": "UTC_TIMESTAMP(6)", "sqlite": "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'NOW')"}
_LATER = {
    "mysql": "UTC_TIMESTAMP(6) + INTERVAL %s SECOND",
    "sqlite": "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'NOW', %s || ' seconds')",
}
_SERVER = {"mysql": "CONCAT_WS(':', @@hostname, @@port, @@server_id)", "sqlite": "'sqlite'"}


# Inside one_moment(): [], and [time] after the first database_now(). None outside.
_moment: ContextVar[list[datetime] | None] = ContextVar("moment", default=None)


class DatabaseState(NamedTuple):
    """Identity of the database server, its time, and the version of the metadata in it.

    `server` is host, port and server id, so that it differs after a failover. With SQLite
    it is always the same. `version` is the incarnation of the metadata and the number of
    its last change, as in a snapshot.
    """

    server: str
    now: datetime
    version: tuple[str, int]


@contextmanager
def one_moment() -> Iterator[None]:
    """Let all calls of database_now() in a block return the same time, so that a page shows
    one moment.
    """
    token = _moment.set([])
    try:
        yield
    finally:
        _moment.reset(token)


def database_now() -> datetime:
    """Return the database's present time, inside one_moment() that of its first call."""
    moment = _moment.get()
    if moment is None:
        return database_state().now
    if not moment:
        moment.append(database_state().now)
    return moment[0]


def database_state() -> DatabaseState:
    """Return the state of the metadata database.

    The statement reads a table, because a database may still answer `SELECT 1` when it
    cannot read its data.
    """
    connection = transaction.get_connection()
    server, table = _SERVER[connection.vendor], ChangeCounter._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {server}, {now_sql()}, incarnation, n FROM {table}", [])  # noqa: S608
        name, now, incarnation, number = cursor.fetchone()
    return DatabaseState(name, to_utc(now), (incarnation, number))


def later_sql() -> str:
    """Return the SQL expression for a time in the future. Its parameter is the number of
    seconds from now.
    """
    return _LATER[transaction.get_connection().vendor]


def now_sql() -> str:
    """Return the SQL expression for the present time. to_utc() parses its value."""
    return _NOW[transaction.get_connection().vendor]


def to_utc(value: datetime | str) -> datetime:
    """Parse a time that a statement in plain SQL returned: text from SQLite, a datetime
    without time zone from MySQL and MariaDB.
    """
    return (datetime.fromisoformat(value) if isinstance(value, str) else value).replace(
        tzinfo=UTC
    )


def as_parameter(time: datetime) -> Any:
    """Return a time in the form of a parameter of a statement in plain SQL."""
    return transaction.get_connection().ops.adapt_datetimefield_value(time)


def ms(time: datetime) -> int:
    """Return milliseconds since 1970 UTC, the form of times in the API."""
    return round(time.timestamp() * 1000)


def age_ms(time: datetime, now: datetime) -> int:
    """Return the age of a time in ms, 0 if it was written after `now` was read."""
    return max(0, ms(now) - ms(time))


def before(now: datetime, *, seconds: float) -> datetime:
    """Return the time `seconds` before `now`."""
    return now - timedelta(seconds=seconds)
