"""PGMQ on PostgreSQL with its default settings, so each commit is synced."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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

    def start(self) -> None:
        self.python = programs.python()
        if self._sql is None:
            raise CannotBeHad("--pgmq FILE names the pgmq.sql of a PGMQ release")
        try:
            # Own directory: the server's user takes it over.
            (self.home / "postgres").mkdir(mode=0o755)
            server = Pgmq(self.home / "postgres", self._port)
        except SystemExit as error:
            raise CannotBeHad(str(error)) from error
        self._server = server
        server.start(self._sql)
        self.version = "PostgreSQL " + server.ask("SHOW server_version").split()[0]

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def connection(self) -> Mapping[str, Any]:
        return {"dsn": f"host=127.0.0.1 port={self._port} user=bench dbname=postgres"}

    def sides(self) -> Mapping[str, Sequence[int]]:
        pid = (self.home / "postgres/data/postmaster.pid").read_text().split()[0]
        return {"server": [int(pid)]}

    def make_topic(self, topic: str) -> None:
        self._ask(f"SELECT pgmq.create('{_checked(topic)}')")

    def clear_topic(self, topic: str) -> None:
        self._ask(f"SELECT pgmq.purge_queue('{_checked(topic)}')")

    def _ask(self, statement: str) -> None:
        assert self._server is not None
        self._server.ask(statement)


def _checked(topic: str) -> str:
    assert re.fullmatch(r"\w+", topic), topic
    return topic
