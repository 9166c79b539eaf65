"""docs/how-to/back-up-and-restore.md does what it says, by its own blocks, on a MariaDB of
its own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path

import pytest

from catmq_client import Consumer, HttpTransport, Producer
from catmq_client.admin.api import Admin
from tests.support import documents, mariadb
from tests.support.environment import ROOT, free_port
from tests.support.mariadb import MariaDB
from tests.support.server import Server

PAGE = ROOT / "docs/how-to/back-up-and-restore.md"
BACK_UP, OFFLINE, RESTORE, CHECK, ADOPT, METADATA, POINT_IN_TIME = range(7)
MUST_ACT = 1  # exit code of restore_check


@dataclass
class Installation:
    """A server whose metadata lies in `catmq` and whose messages lie in `catmq_node1`, as
    on the page.
    """

    home: Path
    database: MariaDB
    server: Server
    blocks: list[documents.Block]
    sent: list[bytes] = field(default_factory=list)

    def terminal(self, block: str, *, code: int = 0) -> str:
        """Return what a block prints that is typed in an operator's terminal."""
        environ = self.server.environment() | {
            "HOME": str(self.home),
            "PATH": f"{self.home}:{os.environ['PATH']}",
            "CATMQ_URL": self.server.url,
            "CATMQ_API_KEY": self.server.api_key,
        }
        return documents.typed(block, directory=self.home, environ=environ, code=code)

    def adopt(self) -> None:
        """Adopt the node, and verify. On a terminal the command asks before it does
        anything.
        """
        command = "adopt_restored_node node1"
        assert command in self.blocks[ADOPT]
        self.terminal(self.blocks[ADOPT].replace(command, f"{command} --yes"))

    def note_heads(self) -> None:
        """Tell metadata where queues end, which a job does once a minute."""
        self.server.manage("run_job", "note_heads")

    def send(self, count: int) -> list[int]:
        """Send messages; return their offsets."""
        bodies = [
            b"%d" % number for number in range(len(self.sent), len(self.sent) + count)
        ]
        self.sent += bodies
        with Producer(urls=self.server.url, api_key=self.server.api_key) as producer:
            return [producer.send("orders", body).offset or 0 for body in bodies]

    def handle(self, count: int) -> list[bytes]:
        """Read and commit messages as group `billing`; return their bodies."""
        client = {"urls": self.server.url, "api_key": self.server.api_key}
        with Consumer(
            **client, group="billing", topics=["orders"], enable_auto_commit=False
        ) as consumer:
            bodies = [message.body for message in islice(consumer, count)]
            consumer.commit()
        return bodies

    def stored(self) -> set[bytes]:
        """Return the bodies of all messages in the topic."""
        admin = Admin(HttpTransport(self.server.url, api_key=self.server.api_key))
        (queue,) = admin.topic("orders")["queues"]
        rows = self.database.execute(
            f"SELECT body FROM catmq_node1.message_{queue['queue']}"
        )
        return {row[0] for row in rows}


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    """A server with a topic on `node1`, an account for backups, and the programs that the
    page calls.
    """
    options = (*mariadb.SMALL, "--log-bin=binlog", "--sync-binlog=1")
    database = mariadb.start(tmp_path / "database", port=free_port(), options=options)
    server = Server(tmp_path / "server", environ={"CATMQ_DATABASE_URL": database.url})
    try:
        server.start()
        server.manage(
            "register_node", "node1", database.url.removesuffix("/catmq") + "/catmq_node1"
        )
        Admin(HttpTransport(server.url, api_key=server.api_key)).create_topic(
            "orders", queues=1, node="node1"
        )
        (tmp_path / ".my.cnf").write_text(
            f"[client]\nhost=127.0.0.1\nport={database.port}\nuser=catmq\npassword={database.password}\n"
        )
        program = tmp_path / "manage.py"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/manage.py "$@"\n')
        program.chmod(0o755)
        yield Installation(tmp_path, database, server, documents.blocks(PAGE.read_text()))
    finally:
        server.clear_away()
        database.stop()


def test_a_node_is_restored_from_its_dump(installation: Installation) -> None:
    one = installation
    one.send(6)
    assert one.handle(4) == one.sent[:4]
    assert "GRANT" in one.terminal(one.blocks[BACK_UP])
    lost = one.send(5)
    assert one.handle(5) == one.sent[4:9]
    one.note_heads()
    for step in (OFFLINE, RESTORE):
        one.terminal(one.blocks[step])
    assert "behind" in one.terminal(one.blocks[CHECK], code=MUST_ACT)
    one.adopt()
    assert "ahead" in one.terminal(one.blocks[CHECK]), "of the mark"
    assert one.stored() == set(one.sent[:6])
    (offset,) = one.send(1)
    assert offset > max(lost), "no offset is used twice"
    assert one.handle(3) == [*one.sent[4:6], one.sent[-1]], (
        "commits after the backup are lost"
    )


def test_a_node_is_restored_to_a_point_in_time(installation: Installation) -> None:
    one = installation
    one.send(3)
    one.terminal(one.blocks[BACK_UP])
    one.send(4)
    end = next_second()
    next_second()
    one.send(5)
    one.note_heads()
    one.terminal(one.blocks[OFFLINE])
    one.terminal(one.blocks[RESTORE])
    one.terminal(of_mariadb(one, end))
    assert "5 messages are lost" in one.terminal(one.blocks[CHECK], code=MUST_ACT)
    one.adopt()
    assert one.stored() == set(one.sent[:7])
    assert one.handle(7) == one.sent[:7]


def test_metadata_is_restored_and_its_counters_are_raised(
    installation: Installation,
) -> None:
    one = installation
    admin = Admin(HttpTransport(one.server.url, api_key=one.server.api_key))
    one.send(3)
    one.terminal(one.blocks[BACK_UP])
    admin.create_topic("later", queues=1, node="node1")
    lost = {queue["queue"] for queue in admin.topic("later")["queues"]}
    one.server.end()
    said = one.terminal(one.blocks[METADATA])
    one.server.start()
    assert [topic["name"] for topic in admin.topics()] == ["orders"], said
    admin.create_topic("later", queues=1, node="node1")
    assert min(queue["queue"] for queue in admin.topic("later")["queues"]) > max(lost), said
    one.send(1)
    assert one.handle(4) == one.sent


def next_second() -> str:
    """Wait for the next second of the clock; return it as the page writes a time."""
    time.sleep(1.05 - time.time() % 1)
    return datetime.now().strftime("%Y-%m-%d %H:%M:%S")


def of_mariadb(one: Installation, end: str) -> str:
    """Return the block for MariaDB with the place of the dump, all files from there on, and
    a time.
    """
    block, others = one.blocks[POINT_IN_TIME].split("# MySQL")
    assert "mysqlbinlog" in others
    dump = (one.home / "catmq_node1.sql").read_text()
    file, position = dump.split("MASTER_LOG_FILE='")[1].split("', MASTER_LOG_POS=")
    files = sorted(str(path) for path in (one.home / "database/data").glob("binlog.0*"))
    after = [path for path in files if Path(path).name >= file]
    for written, real in (
        ("POSITION", position.partition(";")[0]),
        ("2026-03-01 12:00:00", end),
        ("binlog.000007 binlog.000008", " ".join(after)),
    ):
        assert written in block
        block = block.replace(written, real)
    return block
