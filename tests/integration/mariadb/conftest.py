"""Servers of their own for tests that freeze, kill and promote them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from messagestore.pool import node_pools
from tests.support import replication
from tests.support.environment import free_port
from tests.support.mariadb import MariaDB, start


@pytest.fixture(scope="session")
def ill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    """A server that tests freeze and kill, and start again; it has a binary log."""
    home = tmp_path_factory.mktemp("ill")
    server = start(home / "server", port=free_port(), options=replication.options(1))
    yield server
    os.kill(server.pid, signal.SIGCONT)
    server.stop()


@pytest.fixture(scope="session")
def replica(ill: MariaDB, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    """A server that copies `ill`."""
    home = tmp_path_factory.mktemp("replica")
    password = ill.password  # a replica has the accounts of its primary
    server = start(
        home / "server", port=free_port(), password=password, options=replication.options(2)
    )
    replication.follow(server, ill)
    yield server
    server.stop()


@pytest.fixture
def watched() -> Iterator[None]:
    """The loops of circuits, in one thread for all nodes."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            for node in node_pools.used_node_ids():
                node_pools.watch(node)

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        yield
        stop.set()
        watching.result(30)
