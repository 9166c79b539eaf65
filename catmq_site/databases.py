"""The three Django aliases of the metadata database.

    default   what exists; READ COMMITTED on MySQL/MariaDB, BEGIN IMMEDIATE on SQLite
    snapshot  the same database, one consistent snapshot per transaction: REPEATABLE READ /
    BEGIN DEFERRED
    jobs      django-q's tables: the same database on MySQL/MariaDB, a file of its own on SQLite

Message nodes are not here: the store has its own connections.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

from metadata.config import Config, Database
from metadata.rules import tls

# A session of MySQL/MariaDB: mistakes are refused instead of mended silently, and times are
# UTC. Who waits
# for a lock is told so before it gives up, and a process that is frozen in a transaction
# loses it: it would
# hold up every change of all groups. (On MariaDB; the comment hides the variable from
# MySQL, which has none.)
SESSION = (
    "SET SESSION sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone='+00:00', "
    "innodb_lock_wait_timeout=1 /*M! , idle_transaction_timeout=5 */"
)
# WAL lets readers go on beside the writer; FULL makes a commit durable before it is
# answered.
PRAGMAS = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA busy_timeout=10000;"
LONG_S = 60  # the limit of one statement where no client waits


def databases(config: Config) -> dict[str, dict[str, Any]]:
    where = config.database
    if where is None:
        return _sqlite(config.data_dir)
    limit_s = (
        ceil(config.metadata_timeout_ms / 1000) if config.process == "broker" else LONG_S
    )
    return {
        "default": _mysql(where, isolation="read committed", limit_s=limit_s),
        "snapshot": _mysql(where, isolation="repeatable read", limit_s=limit_s),
        "jobs": _mysql(where, isolation="read committed", limit_s=limit_s),
    }


def _sqlite(directory: Path) -> dict[str, dict[str, Any]]:
    return {
        "default": _file(directory / "metadata.sqlite3", mode="IMMEDIATE"),
        "snapshot": _file(directory / "metadata.sqlite3", mode="DEFERRED"),
        "jobs": _file(directory / "jobs.sqlite3", mode="IMMEDIATE"),
    }


def _file(path: Path, *, mode: str) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {"transaction_mode": mode, "init_command": PRAGMAS, "timeout": 10},
        # Tests use files too: threads and other processes must see the same rows.
        "TEST": {"NAME": path.with_name(f"test-{path.name}")},
    }


def _mysql(where: Database, *, isolation: str, limit_s: int) -> dict[str, Any]:
    return {
        "ENGINE": "catmq_site.mysql",
        "NAME": where.name,
        "HOST": where.host,
        "PORT": where.port,
        "USER": where.username,
        "PASSWORD": where.password,
        # 0: a thread gives its connection back to the process's pool (catmq_site/mysql)
        # after each request.
        "CONN_MAX_AGE": 0,
        "OPTIONS": {
            "charset": "utf8mb4",
            "isolation_level": isolation,
            "init_command": SESSION,
            **tls.connect_arguments(*where.encryption),
            "local_infile": 0,  # or a server may ask this process for any file
            "connect_timeout": 2,
            "read_timeout": limit_s,
            "write_timeout": limit_s,
        },
        "TEST": {"CHARSET": "utf8mb4"},
    }
