"""Connections to a MariaDB Galera cluster, which may roll back a transaction at any time for
another member's.

messagestore/engine/transaction_strings.py says what MariaDB does then in a string of several
statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any


def set_up(connection: Any) -> bool:
    """Return True if a new connection leads to a Galera cluster, and set up its session."""
    if "mariadb" not in connection.get_server_info().lower():
        return False
    with closing(connection.cursor()) as cursor:
        cursor.execute("SHOW SESSION VARIABLES LIKE 'wsrep_on'")
        setting = cursor.fetchone()
        if setting is None or setting[1] != "ON":
            return False
        # The server repeats a rolled back statement by itself, and answers an INSERT …
        # RETURNING with the rows of all its tries: Django would take the first one's id.
        cursor.execute("SET SESSION wsrep_retry_autocommit = 0")
    return True


def as_one_statement(statements: Sequence[str]) -> str:
    """Return statements as one compound statement, in which a rollback is an error."""
    return f"BEGIN NOT ATOMIC {'; '.join(statements)}; END"
