"""A private database server for tests, run by script/mariadb, or by script/mysql if a
version is chosen.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from tests.support.environment import ROOT, SERVER

SCRIPT = ROOT / "script" / ("mysql" if SERVER else "mariadb")
VERSION = ("--version", SERVER) if SERVER else ()
ESTABLISHED = "01"  # as /proc/net/tcp has it
# Options for a quick start and small files, which may lie in memory: for MariaDB, for
# MySQL.
LOG = ("--loose-innodb-log-file-size=64M", "--loose-innodb-redo-log-capacity=64M")
SMALL = (*LOG, "--innodb-buffer-pool-size=128M")
NO_BINLOG = (*SMALL, "--skip-log-bin")  # MySQL writes a binary log by default


@dataclass(frozen=True)
class MariaDB:
    """A server: the parts of its URL, SQL as a user with all rights, fresh schemas, stop
    and kill.
    """

    directory: Path
    url: str
    options: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        return int(urlsplit(self.url).port or 0)

    @property
    def password(self) -> str:
        """The password of user catmq."""
        return str(urlsplit(self.url).password)

    @property
    def pid(self) -> int:
        """The server's process id."""
        return int((self.directory / "server.pid").read_text())

    def connect(self, **options: Any) -> Any:
        """Return a new raw connection (mysqlclient) with autocommit."""
        import MySQLdb

        account = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": "catmq",
            "password": self.password,
        }
        return MySQLdb.connect(**account, autocommit=True, charset="utf8mb4", **options)

    def execute(
        self, statement: str, arguments: Sequence[object] = ()
    ) -> list[tuple[Any, ...]]:
        """Run a statement on a connection of its own and return its rows."""
        connection = self.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(statement, arguments or None)
            return list(cursor.fetchall())
        finally:
            connection.close()

    @contextmanager
    def schema(self) -> Iterator[str]:
        """Create an empty schema for the block and yield its name."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        try:
            yield name
        finally:
            # IF EXISTS: a test may drop the schema itself.
            self.execute(f"DROP DATABASE IF EXISTS {name}")

    @contextmanager
    def reader(self, schema: str) -> Iterator[tuple[str, str]]:
        """Create an account that can only read `schema`, and yield (name, password)."""
        name, password = f"reader_{uuid.uuid4().hex[:12]}", uuid.uuid4().hex
        self.execute(f"CREATE USER {name}@'127.0.0.1' IDENTIFIED BY '{password}'")
        self.execute(f"GRANT SELECT ON {schema}.* TO {name}@'127.0.0.1'")
        try:
            yield name, password
        finally:
            self.execute(f"DROP USER {name}@'127.0.0.1'")

    def start(self) -> None:
        """Start the server again after stop() or a kill."""
        start(self.directory, port=self.port, options=self.options, environ=self.environ)

    def stop(self) -> None:
        """Stop the server cleanly."""
        subprocess.run([SCRIPT, "stop", self.directory], check=True)


def start(
    directory: Path,
    *,
    port: int,
    password: str = "",
    options: Sequence[str] = (),
    environ: Mapping[str, str] = MappingProxyType({}),
) -> MariaDB:
    """Start a server. `options` are options of mariadbd such as --log-bin, `environ` its
    variables.
    """
    if password:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "password").write_text(password)
    command = [
        str(SCRIPT),
        "start",
        str(directory),
        *VERSION,
        "--port",
        str(port),
        "--",
        *options,
    ]
    whole_environ = {**os.environ, **environ}
    process = subprocess.run(
        command, capture_output=True, text=True, check=False, env=whole_environ
    )
    assert process.returncode == 0, process.stderr
    return MariaDB(directory, process.stdout.strip(), tuple(options), environ)


def is_alive(server: MariaDB) -> bool:
    """Return True if the server's process runs."""
    try:
        stat = Path(f"/proc/{server.pid}/stat").read_text()
    except OSError:
        return False
    return "Z" not in stat.rpartition(")")[2].split()[0]


def is_connected(server: MariaDB) -> bool:
    """Return True if a connection is open on the server's side.

    The threads of a killed server end in succession.
    """
    end = f":{server.port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(end) and row[3] == ESTABLISHED for row in rows)
