"""The database's clock: all times in metadata are written and compared by it, in UTC."""

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
    """The database's UTC time inside a statement. Django's Now() would give MySQL's session
    time zone.
    """

    arity = 0
    output_field = DateTimeField()

    def as_mysql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """Microseconds on MySQL and MariaDB."""
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **extra)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """Milliseconds on SQLite."""
        return self.as_sql(
            compiler,
            connection,
            template="STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', 'NOW')",
            **extra,
        )


# In statements of text: loops ask every few moments, and to build a query set, or objects,
# costs more.
_NOW = {"mysql": "UTC_TIMESTAMP(6)", "sqlite": "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'NOW')"}
_LATER = {
    "mysql": "UTC_TIMESTAMP(6) + INTERVAL %s SECOND",
    "sqlite": "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'NOW', %s || ' seconds')",
}
_SERVER = {"mysql": "CONCAT_WS(':', @@hostname, @@port, @@server_id)", "sqlite": "'sqlite'"}


_moment: ContextVar[list[datetime] | None] = ContextVar("moment", default=None)


class DatabaseState(NamedTuple):
    """A name that tells a database server from another, its time, and the version of the
    metadata in it.

    The name is host, port and server id: another machine after a failover has another one.
    A file has none. The version is that of a snapshot: the incarnation of the metadata, and
    the number of their last change.
    """

    server: str
    now: datetime
    version: tuple[str, int]


@contextmanager
def one_moment() -> Iterator[None]:
    """Let `database_now` tell the time of its first answer again: what a page shows is of
    one moment.
    """
    token = _moment.set([])
    try:
        yield
    finally:
        _moment.reset(token)


def database_now() -> datetime:
    moment = _moment.get()
    if moment is None:
        return database_state().now
    if not moment:
        moment.append(database_state().now)
    return moment[0]


def database_state() -> DatabaseState:
    """Return the state of the metadata database.

    The statement reads a table: a database that still does sums may be unable to read.
    """
    connection = transaction.get_connection()
    server, table = _SERVER[connection.vendor], ChangeCounter._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {server}, {now_sql()}, incarnation, n FROM {table}", [])  # noqa: S608
        name, now, incarnation, number = cursor.fetchone()
    return DatabaseState(name, to_utc(now), (incarnation, number))


def later_sql() -> str:
    """Return the expression of the time so many seconds from now, which are a parameter."""
    return _LATER[transaction.get_connection().vendor]


def now_sql() -> str:
    """Return the expression of the time in a statement of text; `utc` reads its value."""
    return _NOW[transaction.get_connection().vendor]


def to_utc(told: datetime | str) -> datetime:
    """Return a time as a statement of text gives it: SQLite has text, MySQL and MariaDB no
    zone.
    """
    return (datetime.fromisoformat(told) if isinstance(told, str) else told).replace(
        tzinfo=UTC
    )


def as_parameter(time: datetime) -> Any:
    """Return a time as a parameter of a statement of text."""
    return transaction.get_connection().ops.adapt_datetimefield_value(time)


def ms(time: datetime) -> int:
    """Milliseconds since 1970 UTC, as times are written in the API."""
    return round(time.timestamp() * 1000)


def age_ms(time: datetime, now: datetime) -> int:
    """Return the age of a time, 0 if it was written after `now` was read."""
    return max(0, ms(now) - ms(time))


def before(now: datetime, *, seconds: float) -> datetime:
    return now - timedelta(seconds=seconds)
