"""A server whose disk is full: error 1114 in the middle of a send."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from messagestore import connections, tables, topics
from messagestore.messages import NewMessage
from messagestore.publish import publish
from metadata.actors import command
from metadata.errors import NodeUnavailable
from tests.support.environment import free_port
from tests.support.mariadb import SMALL, MariaDB, start

ACTOR = command("test")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[MariaDB]:
    """A server with one tablespace for everything, of 16 MB."""
    options = [*SMALL, "--innodb-file-per-table=0", "--innodb-data-file-path=ibdata1:12M:autoextend:max:16M"]
    server = start(tmp_path / "small", port=free_port(), options=options)
    yield server
    server.stop()


def test_a_full_disk_is_said_and_leaves_nothing_and_other_nodes_go_on(
    small: MariaDB, make_node: Callable[..., str]
) -> None:
    small.execute("CREATE DATABASE small CHARACTER SET utf8mb4")
    account = {"host": "127.0.0.1", "port": small.port, "username": "catmq", "password": small.password}
    make_node("small", engine="mysql", database="small", **account)
    make_node("roomy")
    queue = topics.create(name="orders", queues=1, node="small", actor=ACTOR).queues[0].queue.queue
    topics.create(name="spread", queues=2, actor=ACTOR)
    stored = 0
    with pytest.raises(NodeUnavailable, match="1114") as caught:
        for _ in range(100):
            publish(topic="orders", messages=[NewMessage(body=b"x" * 500_000)], batch_id=None, actor=ACTOR)
            stored += 1
    assert (caught.value.code, caught.value.retriable) == ("node_full", True)
    with connections.node_of(queue).reading() as session:
        head = tables.read_head(session, queue=queue)
        rows = tables.count_rows(session, queue=queue, first=0, end=1000).rows
    assert head is not None and head.head == rows == stored > 0
    for _ in range(4):  # half of them would have gone to the full node
        (receipt,) = publish(
            topic="spread", messages=[NewMessage(body=b"x" * 500_000)], batch_id=None, actor=ACTOR
        )
        assert receipt.queue != queue  # type: ignore[union-attr]
