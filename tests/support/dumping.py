"""Backups of a database by the programs that people use, and their restore."""

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
# older caches of script/mysql lack the client
MYSQL = CACHES / "catmq" / (SERVER or "none") / "usr/bin"
OWN = (MYSQL / "mysqldump").exists()
IS_MYSQL = SERVER != "" and int(SERVER.partition(".")[0]) < 10


def program(mysql: str, mariadb: str) -> str:
    """MySQL's own program if script/mysql has it, else MariaDB's."""
    found = str(MYSQL / mysql) if OWN else shutil.which(mariadb)
    assert found, f"{mariadb} is missing: install mariadb-client"
    return found


def run(
    server: MariaDB, command: Sequence[str], account: tuple[str, str], text: bytes = b""
) -> bytes:
    """The output of a program that connects to the server as an account (name, password)."""
    name, password = account
    where = ("--no-defaults", "--host=127.0.0.1", f"--port={server.port}", f"--user={name}")
    done = subprocess.run(
        [command[0], *where, *command[1:]],
        input=text, capture_output=True, check=False, env={**os.environ, "MYSQL_PWD": password},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def dump(server: MariaDB, schema: str, account: tuple[str, str]) -> bytes:
    """A logical backup of a schema while it is in use, with its position in the binary log
    if there is one.

    MariaDB's program cannot ask MySQL for the position.
    """
    more: tuple[str, ...] = ("--set-gtid-purged=OFF",) if OWN else ()
    if server.execute("SELECT @@log_bin")[0][0] and (OWN or not IS_MYSQL):
        more += ("--source-data=2",) if OWN else ("--master-data=2",)
    return run(
        server, [program("mysqldump", "mariadb-dump"), *CONSISTENT, *more, schema], account
    )


def load(server: MariaDB, schema: str, text: bytes) -> None:
    """Restores a logical backup in a new schema of the same name."""
    server.execute(f"DROP DATABASE {schema}")
    server.execute(f"CREATE DATABASE {schema} CHARACTER SET utf8mb4")
    run(server, [program("mysql", "mariadb"), schema], ("catmq", server.password), text)


def vacuum_into(database: Path, copy: Path) -> None:
    """A backup of an SQLite file while it is in use."""
    with closing(sqlite3.connect(database)) as source:
        source.execute("VACUUM INTO ?", [str(copy)])


def put_back(copy: Path, database: Path) -> None:
    """Overwrites an SQLite file with its backup, as `.restore` does."""
    with (
        closing(sqlite3.connect(copy)) as source,
        closing(sqlite3.connect(database)) as target,
    ):
        source.backup(target)
