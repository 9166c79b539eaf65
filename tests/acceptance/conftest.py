"""Servers for acceptance tests, one of each engine a session, and stages to play on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.scenarios.stage import Stage
from tests.support import changes
from tests.support.mariadb import MariaDB
from tests.support.servers import Server


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's servers and inputs live."""
    return tmp_path_factory.mktemp("acceptance")


@pytest.fixture(scope="session")
def new_server(home: Path) -> Iterator[Callable[[str], Server]]:
    """A function that makes a server of its own, not yet started; all are stopped at the end."""
    made: list[Server] = []

    def make(name: str) -> Server:
        made.append(Server(home / name))
        return made[-1]

    yield make
    for server in made:
        server.stop()


@pytest.fixture(scope="session")
def server(new_server: Callable[[str], Server]) -> Server:
    """The session's server on the embedded engine; tests neither stop it nor kill its broker."""
    return new_server("embedded").start()


@pytest.fixture(scope="session")
def mariadb_server(home: Path, mariadb: MariaDB) -> Iterator[Server]:
    """The session's server with metadata and two nodes on MariaDB."""
    made = Server(home / "mariadb", environ={"CATMQ_DATABASE_URL": schema(mariadb, "acceptance")})
    try:
        made.start()
        for name in ("n1", "n2"):
            made.manage("register_node", name, schema(mariadb, f"acceptance_{name}"))
        yield made
    finally:
        made.stop()


def schema(mariadb: MariaDB, name: str) -> str:
    """The URL of a new schema."""
    mariadb.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    return f"mysql://catmq:{mariadb.password}@127.0.0.1:{mariadb.port}/{name}"


@pytest.fixture
def on_stage(tmp_path: Path) -> Iterator[Callable[[Server], Stage]]:
    """A function that makes a stage on a server; its processes are killed at the end."""
    made: list[Stage] = []

    def make(server: Server) -> Stage:
        made.append(Stage(server, tmp_path, say=print))
        return made[-1]

    yield make
    for stage in made:
        stage.terminal.close()


@pytest.fixture
def stage(server: Server, on_stage: Callable[[Server], Stage]) -> Stage:
    """A stage on the session's embedded server."""
    return on_stage(server)


@pytest.fixture(scope="session")
def stream(home: Path) -> Path:
    """The whole input, as JSON lines with gzip."""
    return changes.source(home)


@pytest.fixture(scope="session")
def part(home: Path) -> Callable[[int], Path]:
    """A function that gives the first n events of the input as a file."""
    return lambda count: changes.part(home, count)
