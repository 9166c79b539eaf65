"""Fresh databases: an empty metadata database before a test, empty node databases on
demand.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from django.apps import apps
from django.db import connection, connections, transaction

from tests.support.mariadb import MariaDB

T = TypeVar("T")


def empty_metadata() -> None:
    """Delete all rows of metadata, accounts and failed logins, and renew the incarnation.

    The new incarnation makes every process with a cached snapshot load it again.
    """
    from metadata.models import ChangeCounter

    models = [
        model
        for label in ("metadata", "auth", "axes")
        for model in apps.get_app_config(label).get_models()
    ]
    tables = {model._meta.db_table for model in models} - {
        # Has a single row, which is updated below.
        ChangeCounter._meta.db_table,
        # Written by `migrate` only, so a deleted row would be missing in later tests.
        "auth_permission",
    }
    # On SQLite a transaction for each table costs as much as a short test.
    transaction_or_not = (
        transaction.atomic() if connection.vendor == "sqlite" else nullcontext()
    )
    with (
        connection.constraint_checks_disabled(),
        transaction_or_not,
        connection.cursor() as cursor,
    ):
        for table in _with_rows(cursor, tables):
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")
    ChangeCounter.objects.update(incarnation=str(uuid.uuid4()))


def _with_rows(cursor: Any, tables: Iterable[str]) -> list[str]:
    """Return the tables that have rows, with a single query: most tests write to few."""
    queries = [
        f"SELECT '{table}' WHERE EXISTS (SELECT 1 FROM {connection.ops.quote_name(table)})"
        for table in sorted(tables)
    ]
    cursor.execute(" UNION ALL ".join(queries))
    return [table for (table,) in cursor.fetchall()]


@contextmanager
def mysql_node(server: MariaDB) -> Iterator[dict[str, Any]]:
    """Yield the arguments of `messagestore.nodes.registry.register` for a new schema on
    `server`.
    """
    with server.schema() as name:
        account = {"username": "catmq", "password": server.password}
        yield {
            "engine": "mysql",
            "host": "127.0.0.1",
            "port": server.port,
            "database": name,
            **account,
        }


@contextmanager
def sqlite_node(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the arguments of `messagestore.nodes.registry.register` for a new file in
    `directory`.
    """
    path = str(directory / f"node-{uuid.uuid4().hex[:12]}.sqlite3")
    yield {
        "engine": "sqlite",
        "host": "",
        "port": 0,
        "database": path,
        "username": "",
        "password": "",
    }


def in_threads(calls: Iterable[Callable[[], T]], *, limit_s: float = 60) -> list[T]:
    """Return the results of calls that run at the same time, each in a thread of its own.

    Each thread closes its database connections at its end.
    """
    all_calls = list(calls)
    with ThreadPoolExecutor(max_workers=len(all_calls) or 1) as pool:
        futures: list[Future[T]] = [pool.submit(_closing, call) for call in all_calls]
        return [future.result(timeout=limit_s) for future in futures]


def _closing(call: Callable[[], T]) -> T:
    try:
        return call()
    finally:
        # Django's connections belong to the thread; without this they stay open until it is
        # collected.
        connections.close_all()
