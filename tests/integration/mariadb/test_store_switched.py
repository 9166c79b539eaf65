"""A proxy changes the server in the middle of a transaction: the rest of it is not run at a
wrong place, nothing is acknowledged, and the error names the proxy.

The server behind the proxy changes to another connection of the same server. That is the
worst case, since all tables are there, as on another member of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from messagestore.engine import batch_ids, db_errors
from messagestore.engine.messages import NewMessage, digest
from messagestore.engine.mysql_session import MySqlSession
from messagestore.pool import node_pools, session_pool
from messagestore.produce.delayed_delivery import as_batch
from messagestore.produce.publish import publish
from messagestore.tables import delivery_sql, message_sql
from messagestore.tables.shapes import NewBatch
from messagestore.topology import topics
from metadata.actors import command
from metadata.rules.tls import TlsMode
from tests.support.mariadb import MariaDB
from tests.support.moving import delay, make_due
from tests.support.switching import Switching
from tests.support.tampering import look

ACTOR = command("test")
NAMED = "a proxy that has changed the server in the middle of a transaction"
LARGE = [NewMessage(body=b"%d" % index * 500) for index in range(40)]
SEVERAL_STRINGS = 12_500  # bytes of a packet, for which LARGE is too large


@pytest.fixture
def queue(mariadb: MariaDB, node: str) -> int:
    (state,) = topics.create(name="orders", queues=1, actor=ACTOR).queues
    return state.queue.queue


@pytest.fixture
def proxy(mariadb: MariaDB, queue: int) -> Iterator[Switching]:
    schema = node_pools.node_of(queue).info.database
    with Switching(mariadb.port, password=mariadb.password, schema=schema) as switching:
        yield switching


@pytest.fixture
def session(proxy: Switching, queue: int) -> Iterator[MySqlSession]:
    info = node_pools.node_of(queue).info
    with closing(
        session_pool.connect(replace(info, port=proxy.port, tls=TlsMode.OFF))
    ) as made:
        assert isinstance(made, MySqlSession)
        yield made


def everything(queue: int) -> list[Any]:
    """Return all that sends and deliveries write."""
    tables = (f"message_{queue}", "sent_batch", "queue_head", "delayed_message")
    return [sorted(map(str, look(queue, f"SELECT * FROM {table}"))) for table in tables]


def send(session: MySqlSession, queue: int) -> int:
    batch = NewBatch(batch_ids.new().bytes, digest(LARGE), LARGE, "test")
    epoch = node_pools.node_of(queue).info.epoch
    return message_sql.insert_messages(
        session, queue=queue, node_epoch=epoch, batches=[batch]
    )


# What the second string begins with, and what the last one ends with.
@pytest.mark.parametrize("at", [b"SET @catmq_same", b"COMMIT"])
def test_a_send_in_several_strings(
    queue: int, proxy: Switching, session: MySqlSession, at: bytes
) -> None:
    session.max_packet = SEVERAL_STRINGS
    assert send(session, queue) == 0
    before = everything(queue)
    proxy.switch_at = at
    with pytest.raises(db_errors.Ambiguous, match=NAMED) as unknown:
        send(session, queue)
    assert not unknown.value.lost
    # The pool closes it, and with it what was begun on the former server.
    assert not session.clean
    session.close()
    assert proxy.switched == 1
    assert everything(queue) == before
    # The next send has no trace of it.
    (receipt, *_) = publish(topic="orders", messages=LARGE, batch_id=None, actor=ACTOR)
    assert receipt.offset == len(LARGE)  # type: ignore[union-attr]


@pytest.mark.parametrize("at", [b"INSERT INTO", b"COMMIT", b"ROLLBACK"])
def test_a_delivery_of_delayed_messages(
    queue: int, proxy: Switching, session: MySqlSession, at: bytes
) -> None:
    delay("orders", b"first", b"second")
    make_due(queue)
    before = everything(queue)
    info = node_pools.node_of(queue).info
    if at == b"ROLLBACK":
        rows = [10**6]  # a delivery that finds nothing to move
    else:
        rows = [row for (row,) in look(queue, "SELECT id FROM delayed_message")]
    proxy.switch_at = at
    with pytest.raises(db_errors.Ambiguous, match=NAMED):
        delivery_sql.move_delayed(
            session,
            targets={queue: rows},
            node_epoch=info.epoch,
            to_batch=lambda row: as_batch(info.id, row),
        )
    assert not session.clean
    session.close()
    assert proxy.switched == 1
    assert everything(queue) == before


def test_one_string_is_run_by_one_server(
    queue: int, proxy: Switching, session: MySqlSession
) -> None:
    """Most sends: wherever the proxy changes the server, the transaction is whole."""
    proxy.switch_at = b"INSERT INTO message"
    assert send(session, queue) == 0
    assert proxy.switched == 1
    assert session.clean
    assert send(session, queue) == len(LARGE)
