"""The database's clock: all times in metadata are written and compared by it, in UTC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import DateTimeField, Func

from metadata.models import ChangeCounter


class UtcNow(Func):
    """The database's UTC time inside a statement. Django's Now() would give MySQL's session time zone."""

    arity = 0
    output_field = DateTimeField()

    def as_mysql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """Microseconds on MySQL and MariaDB."""
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **extra)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """Milliseconds on SQLite."""
        return self.as_sql(
            compiler, connection, template="STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', 'NOW')", **extra
        )


# In statements of text: loops ask every few moments, and to build a query set costs more than to run it.
_NOW = {"mysql": "UTC_TIMESTAMP(6)", "sqlite": "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'NOW')"}
_SERVER = {"mysql": "CONCAT_WS(':', @@hostname, @@port, @@server_id)", "sqlite": "'sqlite'"}


_moment: ContextVar[list[datetime] | None] = ContextVar("moment", default=None)


@contextmanager
def one_moment() -> Iterator[None]:
    """Let `database_now` tell the time of its first answer again: what a page shows is of one moment."""
    token = _moment.set([])
    try:
        yield
    finally:
        _moment.reset(token)


def database_now() -> datetime:
    moment = _moment.get()
    if moment is None:
        return server_and_now()[1]
    if not moment:
        moment.append(server_and_now()[1])
    return moment[0]


def server_and_now() -> tuple[str, datetime]:
    """Return a name that tells this database server from another, and its time.

    The name is host, port and server id: another machine after a failover has another one. A file has none.
    The statement reads a table: a database that still does sums may be unable to read.
    """
    server = _SERVER[transaction.get_connection().vendor]
    table = ChangeCounter._meta.db_table
    row: Any
    (row,) = ChangeCounter.objects.raw(f"SELECT id, {server} AS server, {now_sql()} AS now FROM {table}")  # noqa: S608
    return row.server, utc(row.now)


def now_sql() -> str:
    """Return the expression of the time in a statement of text; `utc` reads its value."""
    return _NOW[transaction.get_connection().vendor]


def utc(told: datetime | str) -> datetime:
    """Return a time as a statement of text gives it: SQLite has text, MySQL and MariaDB no zone."""
    return (datetime.fromisoformat(told) if isinstance(told, str) else told).replace(tzinfo=UTC)


def ms(time: datetime) -> int:
    """Milliseconds since 1970 UTC, as times are written in the API."""
    return round(time.timestamp() * 1000)


def before(now: datetime, *, seconds: float) -> datetime:
    return now - timedelta(seconds=seconds)
