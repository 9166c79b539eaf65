"""PGMQ on PostgreSQL with its default settings, so each commit is synced."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.peers import programs
from benchmarks.peers.servers import CannotBeHad, Server
from benchmarks.pgmq import Pgmq
from tests.support.environment import free_port


class PgmqServer(Server):
    title = "PGMQ, direct SQL"
    client = "pgmq"
    deletes_read_messages = True

    def __init__(self, home: Path, sql: Path | None) -> None:
        super().__init__(home)
        self._sql, self._port = sql, free_port()
        self._server: Pgmq | None = None
        self._pid_file = self.home / "postgres/data/postmaster.pid"

    def start(self) -> None:
        if self._sql is None:
            raise CannotBeHad("it needs --pgmq FILE, the pgmq.sql of a PGMQ release")
        if not self._sql.is_file():
            raise CannotBeHad(f"--pgmq {self._sql}: there is no such file")
        self.python = programs.python()
        # A directory of its own, since the server's user becomes its owner.
        (self.home / "postgres").mkdir(mode=0o755)
        with _reason():
            self._server = Pgmq(self.home / "postgres", self._port)
            self._server.start(self._sql)
            version = self._server.ask("SHOW server_version").split()[0]
        # The file has no version, so its hash names it.
        digest = hashlib.sha256(self._sql.read_bytes()).hexdigest()
        self.version = f"PostgreSQL {version}, pgmq.sql with SHA-256 {digest[:12]}…"

    def stop(self) -> None:
        # pg_ctl fails if the start has failed before the server ran.
        if self._server is not None and self._pid_file.exists():
            with suppress(SystemExit):
                self._server.stop()
        self._server = None

    def connection(self) -> Mapping[str, Any]:
        return {"dsn": f"host=127.0.0.1 port={self._port} user=bench dbname=postgres"}

    def sides(self) -> Mapping[str, Sequence[int]]:
        return {"server": [int(self._pid_file.read_text().split()[0])]}

    def make_topic(self, topic: str) -> None:
        self._ask(f"SELECT pgmq.create('{topic}')")

    def clear_topic(self, topic: str) -> None:
        self._ask(f"SELECT pgmq.purge_queue('{topic}')")

    def _ask(self, statement: str) -> None:
        assert self._server is not None
        with _reason():
            self._server.ask(statement)


@contextmanager
def _reason() -> Iterator[None]:
    """Raise CannotBeHad instead of the SystemExit of Pgmq."""
    try:
        yield
    except SystemExit as error:
        raise CannotBeHad(str(error)) from error
