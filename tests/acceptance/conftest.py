"""Servers for acceptance tests, one of each engine a session, and stages to play on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.scenarios.stage import Stage
from tests.support import changes
from tests.support import pair as pairs
from tests.support.environment import SERVER
from tests.support.mariadb import MariaDB
from tests.support.pair import Pair
from tests.support.server import Server

# processes of their own, some with settings of their own
collect_ignore_glob = ["programs/*"]
SERVERS = ("server", "mariadb_server", "pair")  # of the session
_running: dict[str, ExitStack] = {}  # those of them that run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring the tests of each server together, and first those that need none: nothing
    idles beside them.

    No test uses two of the session's servers. Where a version of the database server is
    chosen, only tests that use one run.
    """
    if SERVER:
        items[:] = [item for item in items if "mariadb" in users(item)]
    items.sort(key=lambda item: tuple(name in users(item) for name in reversed(SERVERS)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """End the servers of the session that this test does not use.

    Not after the test before: it may be repeated.
    """
    for name in _running.keys() - users(item):
        _running.pop(name).close()


def users(item: pytest.Item) -> set[str]:
    """The names of all that a test uses."""
    return set(getattr(item, "fixturenames", ()))


@contextmanager
def until_unused(name: str) -> Iterator[ExitStack]:
    """A stack that is closed when no further test uses the server of this name."""
    with ExitStack() as stack:
        _running[name] = stack
        yield stack


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's servers and inputs live."""
    return tmp_path_factory.mktemp("acceptance")


@pytest.fixture(scope="session")
def server(home: Path) -> Iterator[Server]:
    """The session's server on the embedded engine; a test that ends its broker waits for
    the next one.
    """
    made = Server(home / "embedded")
    with until_unused("server") as stack:
        stack.callback(made.clear_away)
        yield made.start()


@pytest.fixture(scope="session")
def mariadb_server(home: Path, mariadb: MariaDB) -> Iterator[Server]:
    """The session's server with metadata and two nodes on MariaDB, registered by command."""
    with until_unused("mariadb_server") as stack:
        urls = [url_of(mariadb, stack.enter_context(mariadb.schema())) for _ in range(3)]
        made = Server(home / "mariadb", environ={"CATMQ_DATABASE_URL": urls[0]})
        stack.callback(made.clear_away)
        made.start()
        for name, url in zip(("n1", "n2"), urls[1:], strict=True):
            made.manage("register_node", name, url)
        yield made


@pytest.fixture(scope="session")
def pair(home: Path, mariadb: MariaDB) -> Iterator[Pair]:
    """The session's two servers on one metadata database, which a test may take away and
    must give back.
    """
    with until_unused("pair") as stack:
        yield stack.enter_context(pairs.running(home / "pair", mariadb))


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
