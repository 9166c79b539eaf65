"""CatMQ on SQLite, MariaDB or MySQL, with the code of this directory or of a revision."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from benchmarks import bench
from benchmarks.peers.clients import QUEUES
from benchmarks.peers.servers import CannotBeHad, Server, await_start, end, launch, run_tool
from catmq_client import HttpTransport
from catmq_client.admin.api import Admin
from tests.support.environment import free_port

MYSQL = "9.7"  # a version of script/mysql


class CatmqServer(Server):
    """A whole server with its own database. `code` is the directory of its source."""

    client = "catmq"

    def __init__(
        self, home: Path, engine: str, *, code: Path = bench.HOME, revision: str = ""
    ) -> None:
        super().__init__(home)
        self._engine, self._code = engine, code
        self.is_earlier = bool(revision)
        self.title = {
            "sqlite": "CatMQ, SQLite",
            "mariadb": "CatMQ, MariaDB",
            "mysql": "CatMQ, MySQL",
        }[engine] + (f", {revision}" if revision else "")
        self.python = Path(sys.executable)
        self.client_path = (code / "client/src",)
        self._data = home / "var"
        self._databases = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._credentials: dict[str, str] = {}
        self._queues: dict[str, list[int]] = {}

    def start(self) -> None:
        environ = {
            **{name: text for name, text in os.environ.items() if "CATMQ_" not in name},
            "PYTHONPATH": f"{self._code}:{self._code / 'client/src'}",
            "CATMQ_DATA_DIR": str(self._data),
        }
        self._data.mkdir(mode=0o700)
        node_url = ""
        if self._engine != "sqlite":
            version = MYSQL if self._engine == "mysql" else ""
            try:
                url = self._databases.enter_context(
                    bench.database(self.home / "database", version=version)
                )
            except subprocess.CalledProcessError as error:
                raise CannotBeHad(f"the database does not start: {error}") from error
            environ["CATMQ_DATABASE_URL"] = url
            node_url = f"{url.removesuffix('/catmq')}/catmq_node1"
        supervisor = ("-P", "-m", "catmq_site.server.supervisor")
        options = ("--port", str(free_port()), "--data", str(self._data))
        log = self.home / "server.log"
        self._process = launch(
            [sys.executable, *supervisor, *options],
            log=log,
            environ=environ,
            cwd=self._code,
        )
        await_start(
            self._process,
            lambda: log.exists() and "CatMQ is ready" in log.read_text(errors="replace"),
            log,
        )
        self._credentials = {
            name: value.strip("'\"")
            for name, _, value in (
                line.partition("=")
                for line in (self._data / "credentials.env").read_text().splitlines()
                if "=" in line and not line.startswith("#")
            )
        }
        if node_url:
            manage = [sys.executable, self._code / "manage.py"]
            run_tool([*manage, "register_node", "node1", node_url], environ)
            self.version = bench.version_of(bench.account(node_url))
        else:
            self.version = f"SQLite {sqlite3.sqlite_version}"

    def stop(self) -> None:
        end(self._process)
        self._databases.close()

    def connection(self) -> Mapping[str, Any]:
        return {
            "url": self._credentials["CATMQ_URL"],
            "api_key": self._credentials["CATMQ_API_KEY"],
            "queues": self._queues,
        }

    def sides(self) -> Mapping[str, Sequence[int]]:
        # Without the jobs of the server, which have no part in a send or a pull.
        sides = {"server": [int((self._data / "broker.pid").read_text())]}
        if self._engine != "sqlite":
            pid = (self.home / "database/server.pid").read_text()
            sides["database"] = [int(pid)]
        return sides

    def make_topic(self, topic: str) -> None:
        connection = self.connection()
        transport = HttpTransport(connection["url"], api_key=connection["api_key"])
        with closing(transport):
            queues = Admin(transport).create_topic(topic, queues=QUEUES)["queues"]
        self._queues[topic] = [queue["queue"] for queue in queues]
