"""The database's clock."""

from __future__ import annotations

from typing import Any

from django.db.models import DateTimeField, Func


class UtcNow(Func):
    """The database's UTC time inside a statement. Django's Now() would be in the session's zone on MySQL."""

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

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """Of the statement, not of the transaction's begin; it carries its zone."""
        return self.as_sql(compiler, connection, template="STATEMENT_TIMESTAMP()", **extra)
