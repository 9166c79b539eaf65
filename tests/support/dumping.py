"""Back up and restore databases with the programs that operators use."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tests.support.environment import SERVER
from tests.support.mariadb import MariaDB

CONSISTENT = (
    "--single-transaction",
    "--skip-lock-tables",
    "--no-tablespaces",
    "--hex-blob",
)
CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
# Older caches of script/mysql do not contain the client.
MYSQL = CACHES / "catmq" / (SERVER or "none") / "usr/bin"
HAS_MYSQL_PROGRAMS = (MYSQL / "mysqldump").exists()
IS_MYSQL = SERVER != "" and int(SERVER.partition(".")[0]) < 10


def program(mysql: str, mariadb: str) -> str:
    """Return MySQL's own program if script/mysql installed it, otherwise MariaDB's."""
    path = str(MYSQL / mysql) if HAS_MYSQL_PROGRAMS else shutil.which(mariadb)
    assert path, f"{mariadb} is missing: install mariadb-client"
    return path


def run(
    server: MariaDB, command: Sequence[str], account: tuple[str, str], text: bytes = b""
) -> bytes:
    """Return the output of a program that connects to the server with an account (name,
    password).
    """
    name, password = account
    connect_options = (
        "--no-defaults",
        "--host=127.0.0.1",
        f"--port={server.port}",
        f"--user={name}",
    )
    process = subprocess.run(
        [command[0], *connect_options, *command[1:]],
        input=text, capture_output=True, check=False, env={**os.environ, "MYSQL_PWD": password},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr.decode()
    return process.stdout


def dump(server: MariaDB, schema: str, account: tuple[str, str]) -> bytes:
    """Return a logical backup of a schema in use, with its binary log position if the
    server has a binary log.

    MariaDB's program cannot ask MySQL for the position.
    """
    options: tuple[str, ...] = ("--set-gtid-purged=OFF",) if HAS_MYSQL_PROGRAMS else ()
    if server.execute("SELECT @@log_bin")[0][0] and (HAS_MYSQL_PROGRAMS or not IS_MYSQL):
        options += ("--source-data=2",) if HAS_MYSQL_PROGRAMS else ("--master-data=2",)
    return run(
        server,
        [program("mysqldump", "mariadb-dump"), *CONSISTENT, *options, schema],
        account,
    )


def load(server: MariaDB, schema: str, text: bytes) -> None:
    """Restore a logical backup into a new schema of the same name."""
    server.execute(f"DROP DATABASE {schema}")
    server.execute(f"CREATE DATABASE {schema} CHARACTER SET utf8mb4")
    run(server, [program("mysql", "mariadb"), schema], ("catmq", server.password), text)


def vacuum_into(database: Path, copy: Path) -> None:
    """Back up an SQLite file that is in use."""
    with closing(sqlite3.connect(database)) as source:
        source.execute("VACUUM INTO ?", [str(copy)])


def put_back(copy: Path, database: Path) -> None:
    """Overwrite an SQLite file with its backup, as `.restore` does."""
    with (
        closing(sqlite3.connect(copy)) as source,
        closing(sqlite3.connect(database)) as target,
    ):
        source.backup(target)
