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
    """Deletes every row of metadata, accounts and wrong logins; the change counter gets a
    new incarnation.

    A new incarnation makes every process that cached a snapshot load it afresh.
    """
    from metadata.models import ChangeCounter

    models = [
        one
        for label in ("metadata", "auth", "axes")
        for one in apps.get_app_config(label).get_models()
    ]
    tables = {model._meta.db_table for model in models} - {
        ChangeCounter._meta.db_table,
        "auth_permission",
    }
    # On SQLite a transaction for each table costs as much as a short test.
    together = transaction.atomic() if connection.vendor == "sqlite" else nullcontext()
    with connection.constraint_checks_disabled(), together, connection.cursor() as cursor:
        for table in _with_rows(cursor, tables):
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")
    ChangeCounter.objects.update(incarnation=str(uuid.uuid4()))


def _with_rows(cursor: Any, tables: Iterable[str]) -> list[str]:
    """Return those tables that have a row: most tests write to few."""
    looks = [
        f"SELECT '{table}' WHERE EXISTS (SELECT 1 FROM {connection.ops.quote_name(table)})"
        for table in sorted(tables)
    ]
    cursor.execute(" UNION ALL ".join(looks))
    return [table for (table,) in cursor.fetchall()]


@contextmanager
def mysql_node(server: MariaDB) -> Iterator[dict[str, Any]]:
    """What `messagestore.nodes.registry.register` needs to reach a new schema on `server`."""
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
    """What `messagestore.nodes.registry.register` needs to reach a new file in `directory`."""
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
    """The results of calls that run at the same time, each in a thread that closes its
    connections.
    """
    listed = list(calls)
    with ThreadPoolExecutor(max_workers=len(listed) or 1) as pool:
        futures: list[Future[T]] = [pool.submit(_closing, call) for call in listed]
        return [future.result(timeout=limit_s) for future in futures]


def _closing(call: Callable[[], T]) -> T:
    try:
        return call()
    finally:
        connections.close_all()
