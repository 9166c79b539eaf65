"""A private server for tests, run by script/mariadb, or script/mysql if a version is
chosen.
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
# Options of a server that starts soon, and whose files take little of a memory that holds
# them.
# of MariaDB, of MySQL
LOG = ("--loose-innodb-log-file-size=64M", "--loose-innodb-redo-log-capacity=64M")
SMALL = (*LOG, "--innodb-buffer-pool-size=128M")
NO_BINLOG = (*SMALL, "--skip-log-bin")  # MySQL has a binary log unless told otherwise


@dataclass(frozen=True)
class MariaDB:
    """A server: its URL's parts, SQL as its all-powerful user, fresh schemas, stop and
    kill.
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
        """A new raw connection (mysqlclient), autocommit on."""
        import MySQLdb

        given = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": "catmq",
            "password": self.password,
        }
        return MySQLdb.connect(**given, autocommit=True, charset="utf8mb4", **options)

    def execute(
        self, statement: str, arguments: Sequence[object] = ()
    ) -> list[tuple[Any, ...]]:
        """Runs one statement on a connection of its own; its rows."""
        connection = self.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(statement, arguments or None)
            return list(cursor.fetchall())
        finally:
            connection.close()

    @contextmanager
    def schema(self) -> Iterator[str]:
        """The name of a new empty schema, dropped at the end."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        try:
            yield name
        finally:
            self.execute(f"DROP DATABASE IF EXISTS {name}")

    @contextmanager
    def reader(self, schema: str) -> Iterator[tuple[str, str]]:
        """(name, password) of an account that can only read one schema."""
        name, password = f"reader_{uuid.uuid4().hex[:12]}", uuid.uuid4().hex
        self.execute(f"CREATE USER {name}@'127.0.0.1' IDENTIFIED BY '{password}'")
        self.execute(f"GRANT SELECT ON {schema}.* TO {name}@'127.0.0.1'")
        try:
            yield name, password
        finally:
            self.execute(f"DROP USER {name}@'127.0.0.1'")

    def start(self) -> None:
        """Starts the server again after stop() or a kill."""
        start(self.directory, port=self.port, options=self.options, environ=self.environ)

    def stop(self) -> None:
        """Ends the server cleanly."""
        subprocess.run([SCRIPT, "stop", self.directory], check=True)


def start(
    directory: Path,
    *,
    port: int,
    password: str = "",
    options: Sequence[str] = (),
    environ: Mapping[str, str] = MappingProxyType({}),
) -> MariaDB:
    """Starts a server; `options` are further ones of mariadbd, e.g. --log-bin, `environ`
    its variables.
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
    whole = {**os.environ, **environ}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=whole)
    assert done.returncode == 0, done.stderr
    return MariaDB(directory, done.stdout.strip(), tuple(options), environ)


def is_alive(server: MariaDB) -> bool:
    """Whether the server's process runs."""
    try:
        stat = Path(f"/proc/{server.pid}/stat").read_text()
    except OSError:
        return False
    return "Z" not in stat.rpartition(")")[2].split()[0]


def is_connected(server: MariaDB) -> bool:
    """Return True if a connection is open at its side: a killed server's threads end one by
    one.
    """
    end = f":{server.port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(end) and row[3] == ESTABLISHED for row in rows)
