"""Fixtures of all tests: real databases, committed rows, and metadata that is empty when a
test starts.
"""

from __future__ import annotations

from tests.support import environment

environment.prepare()

import gc
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import django
import pytest
from hypothesis import settings

from tests.support import databases, migrated
from tests.support import mariadb as servers
from tests.support.certificates import Authority
from tests.support.server import log_tails
from tests.support.spare_nodes import SpareNodes

django.setup()
# or it looks through all that was imported again and again
gc.set_threshold(20_000, 20, 20)
settings.register_profile("catmq", deadline=None)  # the machine does other things, too
settings.load_profile("catmq")


def pytest_collection_finish() -> None:
    """Leave out of garbage collections what stays to the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of the servers' logs to the report of a failed test: their directories
    are removed.
    """
    report = yield
    if report.failed:
        report.sections += log_tails()
    return report


@pytest.fixture(scope="session")
def engine() -> str:
    """The engine under test, sqlite or mysql: that of metadata and of the nodes that
    fixtures make.
    """
    return environment.ENGINE


@pytest.fixture(scope="session")
def authority() -> Authority:
    """The CA that signed the certificate of the session's server."""
    return Authority(environment.HOME / "certificates")


@pytest.fixture(scope="session")
def mariadb(authority: Authority) -> Iterator[servers.MariaDB]:
    """The session's server, started when the first test asks for it, on either engine; it
    offers TLS.
    """
    port, password = environment.MARIADB_PORT, environment.MARIADB_PASSWORD
    options = (*servers.SMALL, *authority.options)
    server = servers.start(
        environment.HOME / "mariadb", port=port, password=password, options=options
    )
    yield server
    server.stop()


@pytest.fixture(scope="session")
def django_db_setup(
    request: pytest.FixtureRequest, django_test_environment: None, django_db_blocker: Any
) -> Iterator[None]:
    """The session's metadata database with all aliases; pytest-django's own makes only
    those marks name.
    """
    from django.test.utils import setup_databases, teardown_databases

    if environment.ENGINE == "mysql":
        request.getfixturevalue("mariadb")
    else:
        migrated.copy_to(environment.HOME / "var", prefix="test-")
    with django_db_blocker.unblock():
        made = setup_databases(
            verbosity=0,
            interactive=False,
            keepdb=environment.ENGINE == "sqlite",
            serialized_aliases=[],
        )
    yield
    with django_db_blocker.unblock():
        teardown_databases(made, verbosity=0)


@pytest.fixture
def metadata_db(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """An empty metadata database, to be used from any thread; what a test commits is there
    for all.
    """
    with django_db_blocker.unblock():
        databases.empty_metadata()
        from metadata.cache import snapshot

        snapshot.refresh()
        yield
        from django.db import connections as of_django

        from messagestore.heads import corruption
        from messagestore.pool import node_pools
        from metadata.brokers import discovery

        discovery.evict()  # it tells of brokers from memory
        node_pools.evict_all()
        corruption._reported.clear()
        of_django.close_all()


@pytest.fixture
def node_database(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[..., dict[str, Any]]]:
    """A function that makes an empty database for a node, on the engine under test or the
    one it is given.

    It returns the arguments of `messagestore.nodes.registry.register` that say where the
    database is.
    """
    with ExitStack() as stack:

        def make(engine: str = environment.ENGINE) -> dict[str, Any]:
            if engine == "sqlite":
                return stack.enter_context(databases.sqlite_node(tmp_path))
            return stack.enter_context(
                databases.mysql_node(request.getfixturevalue("mariadb"))
            )

        yield make


@pytest.fixture(scope="session")
def spare_nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SpareNodes]:
    """The session's node databases, used by one test after the other."""
    if environment.ENGINE == "mysql":
        request.getfixturevalue("mariadb")  # stops after they are dropped
    spare = SpareNodes(tmp_path_factory.mktemp("nodes"), environment.ENGINE)
    yield spare
    spare.close()


@pytest.fixture
def make_node(
    request: pytest.FixtureRequest, metadata_db: None, spare_nodes: SpareNodes
) -> Iterator[Callable[..., str]]:
    """A function that makes a node on an empty database, `make_node("n1", kind=…,
    engine=…)` → name.

    The database is one that was registered before, or it is registered now.
    """
    with ExitStack() as stack:

        def make(
            name: str = "main",
            *,
            kind: str = "normal",
            engine: str = environment.ENGINE,
            **more: Any,
        ) -> str:
            from messagestore.nodes import registry
            from metadata import actors
            from metadata.cache import snapshot
            from metadata.nodes import node_rows

            server = request.getfixturevalue("mariadb") if engine == "mysql" else None
            database = spare_nodes.take(engine, server)
            stack.callback(spare_nodes.give_back, database)
            given = {
                "name": name,
                "kind": kind,
                "actor": actors.command("test"),
                **database.given,
                **more,
            }
            if database.shape and not more.keys() - {"dedicated", "capacity_gb"}:
                node_rows.create(identity=database.renew(), **given)
            else:
                registry.register(**given)
                database.registered()
            snapshot.refresh()  # as the loop of a worker would
            return name

        yield make


@pytest.fixture
def node(make_node: Callable[..., str]) -> str:
    """The name of a registered normal node."""
    return make_node("main")


@pytest.fixture
def failure_node(make_node: Callable[..., str]) -> str:
    """The name of a registered failure node."""
    return make_node("failure", kind="failure")


@pytest.fixture
def in_threads() -> Callable[..., list[Any]]:
    """Runs calls at the same time: `in_threads([call, …])` → their results in order."""
    return databases.in_threads
