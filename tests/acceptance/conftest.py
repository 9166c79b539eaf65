"""Servers for acceptance tests, one of each engine a session, and stages to play on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.scenarios.stage import Stage
from tests.support import changes
from tests.support import pair as pairs
from tests.support.mariadb import MariaDB
from tests.support.pair import Pair
from tests.support.server import Server

collect_ignore_glob = ["programs/*"]  # processes of their own, some with settings of their own


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's servers and inputs live."""
    return tmp_path_factory.mktemp("acceptance")


@pytest.fixture(scope="session")
def server(home: Path) -> Iterator[Server]:
    """The session's server on the embedded engine; a test that ends its broker waits for the next one."""
    made = Server(home / "embedded")
    try:
        yield made.start()
    finally:
        made.clear_away()


@pytest.fixture(scope="session")
def mariadb_server(home: Path, mariadb: MariaDB) -> Iterator[Server]:
    """The session's server with metadata and two nodes on MariaDB, registered by command."""
    with ExitStack() as schemas:
        urls = [url_of(mariadb, schemas.enter_context(mariadb.schema())) for _ in range(3)]
        made = Server(home / "mariadb", environ={"CATMQ_DATABASE_URL": urls[0]})
        try:
            made.start()
            for name, url in zip(("n1", "n2"), urls[1:], strict=True):
                made.manage("register_node", name, url)
            yield made
        finally:
            made.clear_away()


@pytest.fixture(scope="session")
def pair(home: Path, mariadb: MariaDB) -> Iterator[Pair]:
    """The session's two servers on one metadata database, which a test may take away and must give back."""
    with pairs.running(home / "pair", mariadb) as made:
        yield made


@pytest.fixture
def on_pair(pair: Pair, tmp_path: Path) -> Iterator[Stage]:
    """A stage whose processes know both of the pair's brokers."""
    made = Stage(pair.first, tmp_path / "stage", say=print, urls=pair.urls)
    yield made
    made.terminal.close()


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """A function that starts a server of the test's own, which the test may kill."""
    made: list[Server] = []

    def make(**options: Any) -> Server:
        made.append(Server(tmp_path / f"server-{len(made)}", **options))
        return made[-1].start()

    yield make
    for server in made:
        server.clear_away()


@pytest.fixture
def database_url(mariadb: MariaDB) -> Iterator[str]:
    """The URL of an empty schema on MariaDB."""
    with mariadb.schema() as schema:
        yield url_of(mariadb, schema)


def url_of(mariadb: MariaDB, schema: str) -> str:
    """The URL of a schema, as CATMQ_DATABASE_URL and register_node take it."""
    return f"mysql://catmq:{mariadb.password}@127.0.0.1:{mariadb.port}/{schema}"


@pytest.fixture
def on_stage(tmp_path: Path) -> Iterator[Callable[[Server], Stage]]:
    """A function that makes a stage on a server; its processes are killed at the end."""
    made: list[Stage] = []

    def make(server: Server) -> Stage:
        made.append(Stage(server, tmp_path / "stage", say=print))
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
