"""The three Django aliases of the metadata database.

    default   READ COMMITTED on MySQL/MariaDB, BEGIN IMMEDIATE on SQLite
    snapshot  the same database with a consistent snapshot per transaction: REPEATABLE READ,
              BEGIN DEFERRED
    jobs      django-q's tables: the same database on MySQL/MariaDB, a file of its own on SQLite

Message nodes are not here: messagestore has its own connections.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

from metadata.config import Config, Database
from metadata.rules import tls

# A session of MySQL/MariaDB: invalid values are refused instead of adjusted, and times are
# UTC. A lock wait fails after 1 s (1205), before the client gives up. A process that is
# frozen in a transaction loses it after 5 s, because it would block every change of all
# groups; the comment hides that variable from MySQL, which has none.
MYSQL_SESSION = (
    "SET SESSION sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone='+00:00', "
    "innodb_lock_wait_timeout=1 /*M! , idle_transaction_timeout=5 */"
)
# WAL lets readers continue while a connection writes. FULL makes a commit durable before
# it returns.
SQLITE_PRAGMAS = (
    "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA busy_timeout=10000;"
)
UNATTENDED_LIMIT_S = 60  # per statement, in processes where no client waits


def databases(config: Config) -> dict[str, dict[str, Any]]:
    database = config.database
    if database is None:
        metadata_file = config.data_dir / "metadata.sqlite3"
        return {
            "default": _sqlite_database(metadata_file, mode="IMMEDIATE"),
            "snapshot": _sqlite_database(metadata_file, mode="DEFERRED"),
            "jobs": _sqlite_database(config.data_dir / "jobs.sqlite3", mode="IMMEDIATE"),
        }
    limit_s = (
        ceil(config.metadata_timeout_ms / 1000)
        if config.process == "broker"
        else UNATTENDED_LIMIT_S
    )
    return {
        "default": _mysql_database(database, isolation="read committed", limit_s=limit_s),
        "snapshot": _mysql_database(database, isolation="repeatable read", limit_s=limit_s),
        "jobs": _mysql_database(database, isolation="read committed", limit_s=limit_s),
    }


def _sqlite_database(path: Path, *, mode: str) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {
            "transaction_mode": mode,
            "init_command": SQLITE_PRAGMAS,
            "timeout": 10,
        },
        # Tests use files too: threads and other processes must see the same rows.
        "TEST": {"NAME": path.with_name(f"test-{path.name}")},
    }


def _mysql_database(database: Database, *, isolation: str, limit_s: int) -> dict[str, Any]:
    return {
        "ENGINE": "catmq_site.mysql",
        "NAME": database.name,
        "HOST": database.host,
        "PORT": database.port,
        "USER": database.username,
        "PASSWORD": database.password,
        # 0: a thread returns its connection to the pool (mysql/idle.py) after each request.
        "CONN_MAX_AGE": 0,
        "OPTIONS": {
            "charset": "utf8mb4",
            "isolation_level": isolation,
            "init_command": MYSQL_SESSION,
            **tls.connect_arguments(*database.encryption),
            "local_infile": 0,  # otherwise a server may ask this process for any file
            "connect_timeout": 2,
            "read_timeout": limit_s,
            "write_timeout": limit_s,
        },
        "TEST": {"CHARSET": "utf8mb4"},
    }
