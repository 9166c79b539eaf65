"""Two whole servers on the same metadata database, which has its own MariaDB. The nodes are
on another server.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.fernet import Fernet

from tests.support import mariadb
from tests.support.environment import ROOT, free_port
from tests.support.links import Link
from tests.support.mariadb import MariaDB
from tests.support.server import Server
from tests.support.skew import WallClock, wall_clock
from tests.support.waiting import until

NODES = ("n1", "n2")


@dataclass
class Brokers:
    """Two servers on the same metadata database."""

    first: Server
    second: Server

    @property
    def servers(self) -> tuple[Server, Server]:
        """Both servers."""
        return self.first, self.second

    @property
    def urls(self) -> str:
        """The URLs of both servers, as CATMQ_URL takes them."""
        return f"{self.first.url},{self.second.url}"

    def reach_metadata(self) -> bool:
        """Return True if both brokers reach the metadata.

        Each is called many times, because each of its workers detects it separately.
        """
        calls = [server for server in self.servers for _ in range(10)]
        return all(server.call("GET", "/api/v1/groups")[0] == 200 for server in calls)


@dataclass
class Pair(Brokers):
    """Two servers whose metadata has a MariaDB of its own. The wall clock of the second, with
    its job runner, can be moved.
    """

    metadata: MariaDB
    nodes: MariaDB
    schemas: tuple[str, ...]  # of the nodes
    clock: WallClock
    links: tuple[Link, ...] = ()  # from each server to the metadata, if there are any

    def committed(self, queues: list[int]) -> int:
        """Return the sum of all groups' committed offsets of these queues, from the
        nodes.
        """
        queue_list = ",".join(map(str, queues))
        total = 0
        for schema in self.schemas:
            condition = f"FROM {schema}.reader WHERE queue_id IN ({queue_list})"
            total += int(
                self.nodes.execute(f"SELECT COALESCE(SUM(committed), 0) {condition}")[0][0]
            )
        return total

    @contextmanager
    def metadata_frozen(self) -> Iterator[None]:
        """Stop the metadata's server with SIGSTOP during the block: it accepts connections
        but never answers.
        """
        pid = self.metadata.pid
        os.kill(pid, signal.SIGSTOP)
        # On a busy machine a thread may still answer for a moment.
        until(lambda: _is_stopped(pid))
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextmanager
    def metadata_killed(self) -> Iterator[None]:
        """Kill the metadata's server with SIGKILL, and start it again after the block."""
        os.kill(self.metadata.pid, signal.SIGKILL)
        try:
            yield
        finally:
            self.metadata.start()


def _is_stopped(pid: int) -> bool:
    """Return True if every thread of a process has stopped."""
    states = [
        (task / "stat").read_text().rpartition(")")[2].split()[0] for task in _tasks(pid)
    ]
    return set(states) == {"T"}


def _tasks(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


@contextmanager
def running(
    home: Path, nodes: MariaDB, *, linked: bool = False, root: Path = ROOT
) -> Iterator[Pair]:
    """Start both servers, with two nodes on `nodes`. `linked`: each reaches the metadata
    through a link. `root`: the directory of their code.
    """
    home.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        schemas = tuple(stack.enter_context(nodes.schema()) for _ in NODES)
        metadata = mariadb.start(home / "metadata", port=free_port(), options=mariadb.SMALL)
        stack.callback(metadata.stop)
        clock = wall_clock(home)
        links = tuple(
            stack.enter_context(Link(metadata.port, mysql=True, name="metadata").running())
            for _ in range(2 * linked)
        )
        linked_urls = [
            metadata.url.replace(f":{metadata.port}/", f":{link.port}/") for link in links
        ]
        urls = linked_urls or [metadata.url] * 2
        environs = [{"CATMQ_DATABASE_URL": url} for url in urls]
        environs[1] |= clock.environ
        brokers = stack.enter_context(running_brokers(home, environs, root=root))
        first, second = brokers.servers
        for name, schema in zip(NODES, schemas, strict=True):
            first.manage("register_node", name, nodes.url.rpartition("/")[0] + f"/{schema}")
        yield Pair(first, second, metadata, nodes, schemas, clock, links)


@contextmanager
def running_brokers(
    home: Path, environs: Sequence[Mapping[str, str]], *, root: Path = ROOT
) -> Iterator[Brokers]:
    """Start two servers with these variables, which name the same empty metadata database.

    `root`: the directory of their code.
    """
    common = {
        "CATMQ_SECRET_KEY": secrets.token_hex(32),
        "CATMQ_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
        "CATMQ_JAVA_NETWORKS": "127.0.0.0/8",
    }
    first, second = (
        Server(home / name, environ={**common, **environ}, root=root)
        for name, environ in zip(("first", "second"), environs, strict=True)
    )
    with ExitStack() as stack:
        # Registered before the start, so that a failed start leaves no process.
        stack.callback(first.clear_away)
        first.start()
        stack.callback(second.clear_away)
        # After the first, whose start has migrated the metadata and made the key.
        second.join(first).start()
        yield Brokers(first, second)
