"""A server whose disk is full: error 1114 in the middle of a send, and error 3 where there
is no room for what does not fit the cache of the binary log.

Bodies are small enough to lie in the rows: MariaDB 11.8.6 ends itself where a larger one
meets the full disk.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from messagestore.engine import batch_ids
from messagestore.engine.messages import NewMessage
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.tables import audit_sql, queue_sql
from messagestore.topology import topics
from metadata.actors import command
from metadata.errors import NodeUnavailable
from tests.support import replication
from tests.support.environment import free_port
from tests.support.mariadb import SMALL, MariaDB, start

ACTOR = command("test")
MESSAGES = [NewMessage(body=b"x" * 5_000)] * 100


@pytest.fixture
def small(tmp_path: Path) -> Iterator[MariaDB]:
    """A server with one tablespace for everything, of 16 MB."""
    options = [
        *SMALL,
        "--innodb-file-per-table=0",
        "--innodb-data-file-path=ibdata1:12M:autoextend:max:16M",
    ]
    server = start(tmp_path / "small", port=free_port(), options=options)
    yield server
    server.stop()


def test_a_full_disk_is_said_and_leaves_nothing_and_other_nodes_go_on(
    small: MariaDB, make_node: Callable[..., str]
) -> None:
    small.execute("CREATE DATABASE small CHARACTER SET utf8mb4")
    account = {
        "host": "127.0.0.1",
        "port": small.port,
        "username": "catmq",
        "password": small.password,
    }
    make_node("small", engine="mysql", database="small", **account)
    make_node("roomy")
    queue = (
        topics.create(name="orders", queues=1, node="small", actor=ACTOR)
        .queues[0]
        .queue.queue
    )
    topics.create(name="spread", queues=2, actor=ACTOR)
    stored = 0
    with pytest.raises(NodeUnavailable, match="1114") as caught:
        for _ in range(100):
            publish(topic="orders", messages=MESSAGES, batch_id=None, actor=ACTOR)
            stored += len(MESSAGES)
    assert (caught.value.code, caught.value.retriable) == ("node_full", True)
    with node_pools.node_of(queue).reading() as session:
        head = queue_sql.read_head(session, queue=queue)
        rows = audit_sql.count_rows(session, queue=queue, first=0, end=10_000).rows
    assert head is not None and head.head == rows == stored > 0
    for _ in range(4):  # half of them would have gone to the full node
        receipts = publish(topic="spread", messages=MESSAGES, batch_id=None, actor=ACTOR)
        assert queue not in {one.queue for one in receipts}  # type: ignore[union-attr]


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[Path]:
    """A directory with room for 1 MiB; only root can make one."""
    directory = tmp_path / "cramped"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("a small file system needs root")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


@pytest.fixture
def logging(tmp_path: Path, cramped: Path) -> Iterator[MariaDB]:
    """A server with a binary log, and little room for what does not fit the log's cache in
    memory.

    MariaDB 10.11 writes that to the temporary directory, 11.8 beside the log.
    """
    places = [f"--tmpdir={cramped}", f"--log-bin={cramped / 'log'}"]
    options = [*replication.options(1), "--binlog-cache-size=32768", *places]
    server = start(tmp_path / "logging", port=free_port(), options=options)
    yield server
    server.stop()


def test_a_send_that_the_binary_log_has_no_room_for_is_a_full_node_and_stored_when_there_is_room(
    logging: MariaDB, cramped: Path, make_node: Callable[..., str]
) -> None:
    logging.execute("CREATE DATABASE small CHARACTER SET utf8mb4")
    account = {
        "host": "127.0.0.1",
        "port": logging.port,
        "username": "catmq",
        "password": logging.password,
    }
    make_node("main", engine="mysql", database="small", **account)
    topics.create(name="orders", queues=1, node="main", actor=ACTOR)
    messages, batch_id = [NewMessage(body=b"x" * 500_000)] * 4, batch_ids.new()
    with pytest.raises(NodeUnavailable, match="answered 3:") as caught:
        publish(topic="orders", messages=messages, batch_id=batch_id, actor=ACTOR)
    assert (caught.value.code, caught.value.retriable) == ("node_full", True)
    assert "disk" in caught.value.detail
    subprocess.run(["mount", "-o", "remount,size=16m", str(cramped)], check=True)
    stored = publish(topic="orders", messages=messages, batch_id=batch_id, actor=ACTOR)
    assert [one.offset for one in stored] == [0, 1, 2, 3]  # type: ignore[union-attr]
