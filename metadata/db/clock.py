"""The database's clock: all times in metadata are written and compared by it, in UTC."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import CharField, DateTimeField, Func

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


class ServerName(Func):
    """Name that tells one database server from another: host, port and server id."""

    arity = 0
    output_field = CharField()

    def as_mysql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """Another machine after a failover has another name or id."""
        return self.as_sql(
            compiler, connection, template="CONCAT_WS(':', @@hostname, @@port, @@server_id)", **extra
        )

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """A file has no server."""
        return self.as_sql(compiler, connection, template="'sqlite'", **extra)


def database_now() -> datetime:
    return server_and_now()[1]


def server_and_now() -> tuple[str, datetime]:
    row = ChangeCounter.objects.annotate(server=ServerName(), now=UtcNow()).values_list("server", "now").get()
    return str(row[0]), row[1]


def ms(time: datetime) -> int:
    """Milliseconds since 1970 UTC, as times are written in the API."""
    return round(time.timestamp() * 1000)


def before(now: datetime, *, seconds: float) -> datetime:
    return now - timedelta(seconds=seconds)
