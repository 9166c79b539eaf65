"""Clusters of database servers for tests, run by script/cluster, whose links can be cut.

    with running("galera", directory) as cluster:
        cluster.cut(1)
        cluster.await_state(lambda members: members[1].writer)

`members` maps 1, 2, 3 to their state. A test that needs a cluster is skipped with the
reason if it cannot be had: no packages, or no root to cut links.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.environment import ROOT
from tests.support.waiting import until

SCRIPT = ROOT / "script" / "cluster"
UNAVAILABLE = 3  # the exit code of script/cluster if packages cannot be had
# Statement that returns a row on a member that takes writes, by kind of cluster.
TAKES_WRITES = {
    "galera": "SHOW GLOBAL STATUS WHERE Variable_name = 'wsrep_ready' AND Value = 'ON'",
    "group": (
        "SELECT 1 FROM performance_schema.replication_group_members WHERE MEMBER_ID ="
        " @@server_uuid AND MEMBER_STATE = 'ONLINE' AND MEMBER_ROLE = 'PRIMARY'"
    ),
}
# Statement after which a session waits for what the cluster has committed.
SEE_ALL = {
    "galera": "SET SESSION wsrep_sync_wait = 1",
    "group": "SET SESSION group_replication_consistency = 'BEFORE'",
}
STATE_S = 100  # a group joins again in 40 s, on a busy machine in 80 s


@dataclass(frozen=True)
class Member:
    """State of a member, as `script/cluster status --json` prints it."""

    member: int
    host: str
    port: int
    group_host: str
    url: str
    directory: str
    pid: int | None
    frozen: bool
    cut: str
    state: str
    size: int
    primary: bool
    writer: bool

    @property
    def password(self) -> str:
        return str(urlsplit(self.url).password)

    def connect(self, **options: Any) -> Any:
        """Return a new raw connection (mysqlclient) with autocommit."""
        import MySQLdb

        account = {"host": self.host, "port": self.port, "user": "catmq"}
        return MySQLdb.connect(
            **account,
            password=self.password,
            autocommit=True,
            charset="utf8mb4",
            connect_timeout=3,
            **options,
        )

    def execute(self, statement: str, arguments: Sequence[object] = ()) -> list[Any]:
        """Run a statement on a connection of its own and return its rows."""
        connection = self.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(statement, arguments or None)
            return list(cursor.fetchall())
        finally:
            connection.close()


@dataclass(frozen=True)
class Cluster:
    """A cluster in a directory. `kind` is galera or group."""

    kind: str
    directory: Path

    def run(self, verb: str, *arguments: object) -> str:
        """Run a verb of script/cluster and return its output. Skips the test without packages."""
        command = [SCRIPT, self.kind, verb, "--dir", self.directory, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == UNAVAILABLE:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def members(self) -> dict[int, Member]:
        """Return the state of all members by number."""
        rows = json.loads(self.run("status", "--json"))
        return {row["member"]: Member(**row) for row in rows}

    @property
    def writer(self) -> Member:
        """Return the first member that takes writes."""
        return next(member for member in self.members.values() if member.writer)

    def url(self, schema: str) -> str:
        """Return the URL of a schema with the addresses of all members."""
        return f"mysql://catmq:{self.password}@{self.addresses}/{schema}"

    @property
    def addresses(self) -> str:
        """Return the addresses of all members, as brokers take them."""
        return ",".join(
            f"{account['host']}:{account['port']}" for account in self._accounts
        )

    @property
    def password(self) -> str:
        return str(self._accounts[0]["password"])

    def has_writer(self) -> bool:
        """Return True if a client can write now."""
        try:
            self.connect().close()
        except OSError:
            return False
        return True

    def find_written(self) -> Member:
        """Return the member that brokers have to write to: on Galera, where all members take
        writes, that with the lowest index of its view.
        """
        writers = [member for member in self.members.values() if member.writer]
        if self.kind != "galera":
            (primary,) = writers
            return primary
        index = "SHOW GLOBAL STATUS LIKE 'wsrep_local_index'"
        return min(writers, key=lambda member: int(member.execute(index)[0][1]))

    def connect(self, **options: Any) -> Any:
        """Return a raw connection to a member that takes writes, which sees everything that
        the cluster has committed. Raises OSError if there is none.
        """
        import MySQLdb

        for account in random.sample(self._accounts, len(self._accounts)):
            try:
                connection = MySQLdb.connect(
                    **{"connect_timeout": 3, "read_timeout": 10, **account, **options},
                    autocommit=True,
                    charset="utf8mb4",
                )
            except MySQLdb.Error:
                continue
            try:
                cursor = connection.cursor()
                cursor.execute(TAKES_WRITES[self.kind])
                if cursor.fetchall():
                    cursor.execute(SEE_ALL[self.kind])
                    return connection
            except MySQLdb.Error:
                pass
            connection.close()
        raise OSError(f"no member of {self.directory} takes writes")

    def execute(self, statement: str) -> list[Any]:
        """Run a statement on a connection of its own and return its rows."""
        connection = self.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(statement)
            return list(cursor.fetchall())
        finally:
            connection.close()

    @cached_property
    def _accounts(self) -> list[dict[str, Any]]:
        # Addresses stay the same, and `members` costs several processes.
        return [
            {"host": m.host, "port": m.port, "user": "catmq", "password": m.password}
            for m in self.members.values()
        ]

    def start(self, *arguments: object) -> None:
        self.run("start", *arguments)

    def stop(self, member: int) -> None:
        self.run("stop", member)

    def kill(self, member: int) -> None:
        self.run("kill", member)

    def freeze(self, member: int) -> None:
        self.run("freeze", member)

    def cut(self, member: int, *options: str) -> None:
        """Cut a member off from the others; `options` are --clients or --only-clients."""
        self.run("cut", member, *options)

    def heal(self) -> None:
        self.run("heal")

    def await_state(
        self, condition: Callable[[Mapping[int, Member]], bool], limit_s: float = STATE_S
    ) -> None:
        """Wait until a condition on the members holds."""
        until(lambda: condition(self.members), limit_s=limit_s)

    def await_whole(self) -> None:
        """Heal everything, start what was killed, and wait until all members are joined."""
        self.heal()
        self.start()
        self.await_state(
            lambda members: all(
                member.primary and member.size == len(members)
                for member in members.values()
            )
        )


@contextmanager
def running(kind: str, directory: Path, *arguments: object) -> Iterator[Cluster]:
    """Run a cluster of its own during the block, and delete it afterwards."""
    cluster = Cluster(kind, directory)
    try:
        cluster.start(*arguments)
        yield cluster
    finally:
        subprocess.run([SCRIPT, kind, "stop", "--dir", directory], check=False)


def require_links(cluster: Cluster) -> None:
    """Skip the test if links of the cluster cannot be cut here."""
    if cluster.members[1].host.startswith("127."):
        pytest.skip("links can be cut only as root, with the package iproute2")
