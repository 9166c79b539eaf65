"""The systems that are compared, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.servers import Server
from benchmarks.peers.servers.catmq import CatmqServer

CATMQ = ("sqlite", "mariadb", "mysql")
Maker = Callable[[Path], Server]


def makers(pgmq_sql: Path | None) -> dict[str, Maker]:
    """Return functions that make each system in a directory of its own."""
    return {
        "sqlite": lambda home: CatmqServer(home, "sqlite"),
        "mariadb": lambda home: CatmqServer(home, "mariadb"),
        "mysql": lambda home: CatmqServer(home, "mysql"),
    }
