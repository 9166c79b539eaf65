"""Every error that can end a publish in its middle, forced on a real server.

After each the same broker process publishes again, and the queue is as if the failed try
had never been: the head is the number of rows, the offsets are 0 … n-1, nothing
acknowledged is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from messagestore.engine.messages import NewMessage
from messagestore.engine.mysql_session import MySqlSession
from messagestore.heads import corruption
from messagestore.nodes import registry
from messagestore.pool import node_pools, session_pool
from messagestore.produce.publish import publish
from messagestore.tables import message_sql, queue_sql
from messagestore.topology import topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.db import secrets
from metadata.errors import CatmqError, Code, Invalid, StoreCorrupt, TooLarge
from metadata.models import DbNode
from tests.support import commits
from tests.support.mariadb import MariaDB
from tests.support.waiting import until

ACTOR = command("test")
SMALL = [NewMessage(body=b"%d" % index, key="k") for index in range(3)]


class Bench:
    """One topic of one queue, and a way into its database beside the product."""

    def __init__(self, server: MariaDB, queue: int) -> None:
        self.server = server
        self.queue = queue
        self.table = f"{node_pools.node_of(queue).info.database}.message_{queue}"
        self.schema = node_pools.node_of(queue).info.database

    def send(self, messages: list[NewMessage] = SMALL) -> list[Any]:
        return publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.execute(statement.format(table=self.table, schema=self.schema))

    def offsets(self) -> list[int]:
        return [
            row[0]
            for row in self.execute("SELECT msg_offset FROM {table} ORDER BY msg_offset")
        ]

    def head(self) -> int:
        return int(self.execute("SELECT head FROM {schema}.queue_head")[0][0])

    def row(self, offset: int) -> str:
        """The statement with which somebody else writes a message at an offset."""
        columns = "(msg_offset, body, producer, stored_at)"
        return f"INSERT INTO {self.table} {columns} VALUES ({offset}, '', 'x', NOW())"

    def must_be_whole(self, count: int) -> None:
        """The queue holds exactly `count` messages at 0 … count-1, and so does
        `sent_batch`.
        """
        assert self.offsets() == list(range(count))
        assert self.head() == count
        assert (
            int(
                self.execute(
                    "SELECT COALESCE(SUM(message_count), 0) FROM {schema}.sent_batch"
                )[0][0]
            )
            == count
        )

    def publishing(self) -> int | None:
        """The server's id of the connection that publishes at this moment."""
        rows = self.execute(
            f"SELECT id FROM {commits.PROCESSLIST}"
            " WHERE db = '{schema}' AND command = 'Query' AND id <> CONNECTION_ID()"
        )
        return int(rows[0][0]) if rows else None


@pytest.fixture
def bench(mariadb: MariaDB, node: str) -> Bench:
    """A topic `orders` with one queue and three messages."""
    state = topics.create(name="orders", queues=1, actor=ACTOR)
    bench = Bench(mariadb, state.queues[0].queue.queue)
    bench.send()
    return bench


@pytest.fixture
def foreign(bench: Bench) -> Iterator[Any]:
    """A connection of somebody else, in a transaction."""
    with closing(bench.server.connect(db=bench.schema)) as connection:
        connection.autocommit(False)
        yield connection.cursor()
        connection.rollback()


@pytest.fixture
def background() -> Iterator[Callable[..., Future[Any]]]:
    """Runs a call beside the test."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def test_a_lock_that_is_held_for_a_moment_only_delays(
    bench: Bench, foreign: Any, background: Callable[..., Future[Any]]
) -> None:
    foreign.execute("SELECT head FROM queue_head FOR UPDATE")
    sending = background(bench.send)
    until(lambda: bench.publishing() is not None)
    foreign.connection.rollback()
    assert [receipt.offset for receipt in sending.result(10)] == [3, 4, 5]
    bench.must_be_whole(6)


def test_a_lock_that_is_held_too_long_is_an_error_and_leaves_nothing(
    bench: Bench, foreign: Any
) -> None:
    foreign.execute("SELECT head FROM queue_head FOR UPDATE")
    with pytest.raises(CatmqError) as caught:
        bench.send()
    assert (caught.value.code, caught.value.retriable) == ("node_unavailable", True)
    foreign.connection.rollback()
    bench.must_be_whole(3)
    bench.send()
    bench.must_be_whole(6)


def test_the_victim_of_a_deadlock_is_repeated(
    bench: Bench, foreign: Any, background: Callable[..., Future[Any]]
) -> None:
    bench.execute(
        "CREATE TABLE {schema}.weight (id INT PRIMARY KEY AUTO_INCREMENT, t TEXT)"
    )
    foreign.execute(bench.row(3))
    foreign.executemany(
        "INSERT INTO weight (t) VALUES (%s)", [("heavier than a batch",)] * 500
    )
    sending = background(bench.send)
    until(lambda: bench.publishing() is not None)
    # The batch holds the head and waits for offset 3; now this one wants the head: the
    # lighter dies.
    foreign.execute("SELECT head FROM queue_head FOR UPDATE")
    metrics = "information_schema.innodb_metrics"
    deadlocks = bench.execute(f"SELECT count FROM {metrics} WHERE name = 'lock_deadlocks'")
    foreign.connection.rollback()
    assert [receipt.offset for receipt in sending.result(10)] == [3, 4, 5]
    assert int(deadlocks[0][0]) >= 1
    bench.must_be_whole(6)


def test_a_value_that_does_not_fit_an_altered_table_is_reported_and_leaves_nothing(
    bench: Bench,
) -> None:
    bench.execute("ALTER TABLE {table} MODIFY msg_key VARCHAR(3)")
    with pytest.raises(StoreCorrupt, match="1406"):
        bench.send(
            [NewMessage(body=b"", key="fit"), NewMessage(body=b"", key="far too long")]
        )
    assert bench.queue not in corruption.current(), (
        "a limit above the column's would do the same"
    )
    bench.must_be_whole(3)
    bench.send()
    bench.must_be_whole(6)


def test_an_answer_without_the_place_of_what_was_stored_gives_no_wrong_receipt(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = MySqlSession._read_results
    monkeypatch.setattr(
        MySqlSession,
        "_read_results",
        lambda self: [one._replace(number=0) for one in read(self)],
    )
    # a second try found it
    assert [receipt.offset for receipt in bench.send()] == [3, 4, 5]
    bench.must_be_whole(6)


def test_a_head_below_a_stored_message_is_corrupt_and_hurts_no_message(
    bench: Bench,
) -> None:
    bench.execute("UPDATE {schema}.queue_head SET head = 1")
    with pytest.raises(StoreCorrupt, match="log end offset"):
        bench.send()
    assert bench.queue in corruption.current()
    corruption.delivered(bench.queue, next_offset=1)
    assert bench.offsets() == [0, 1, 2]
    bench.execute("UPDATE {schema}.queue_head SET head = 3")
    bench.send()
    bench.must_be_whole(6)


def test_a_missing_table_is_reported_and_moves_no_head(bench: Bench) -> None:
    bench.execute("RENAME TABLE {table} TO {schema}.away")
    with pytest.raises(StoreCorrupt, match="1146"):
        bench.send()
    bench.execute("RENAME TABLE {schema}.away TO {table}")
    bench.must_be_whole(3)
    bench.send()
    bench.must_be_whole(6)


def test_a_missing_head_row_is_reported_and_writes_nowhere(bench: Bench) -> None:
    (row,) = bench.execute("SELECT * FROM {schema}.queue_head")
    bench.execute("DELETE FROM {schema}.queue_head")
    with pytest.raises(CatmqError) as caught:
        bench.send()
    assert caught.value.code in ("queue_not_writable", "no_writable_queue")
    with closing(bench.server.connect(db=bench.schema)) as connection:
        connection.cursor().execute(
            "INSERT INTO queue_head VALUES (%s, %s, %s, %s, %s, %s)", row
        )
    bench.must_be_whole(3)
    bench.send()
    bench.must_be_whole(6)


def test_another_node_epoch_fences_a_broker(bench: Bench) -> None:
    bench.execute("UPDATE {schema}.queue_head SET node_epoch = 2")
    with pytest.raises(CatmqError) as caught:
        bench.send()
    assert caught.value.retriable
    bench.execute("UPDATE {schema}.queue_head SET node_epoch = 1")
    bench.send()
    bench.must_be_whole(6)


def test_a_connection_killed_in_commit_is_stored_exactly_once(
    bench: Bench, background: Callable[..., Future[Any]]
) -> None:
    with commits.held_up(bench.server):
        sending = background(bench.send)
        victim = until(bench.publishing)
        state = f"SELECT state FROM {commits.PROCESSLIST} WHERE id = {victim}"
        until(lambda: commits.STATE in str(bench.execute(state)))
        bench.server.execute(f"KILL CONNECTION {victim}")
    assert len(sending.result(20)) == 3
    bench.must_be_whole(6)


def test_an_idle_connection_that_was_killed_costs_no_send(bench: Bench) -> None:
    for (connection,) in bench.execute(
        f"SELECT id FROM {commits.PROCESSLIST} WHERE db = '{{schema}}' AND command = 'Sleep'"
    ):
        bench.server.execute(f"KILL CONNECTION {connection}")
    bench.send()
    bench.must_be_whole(6)


def test_a_writer_that_is_slow_to_commit_hides_no_later_message(
    bench: Bench, foreign: Any, background: Callable[..., Future[Any]]
) -> None:
    """A foreign writer raises the head and waits; later ones wait behind it: nothing
    appears after a hole.
    """
    foreign.execute("UPDATE queue_head SET head = head + 1")
    foreign.execute(bench.row(3))
    sending = background(bench.send)
    until(lambda: bench.publishing() is not None)
    assert bench.offsets() == [0, 1, 2]
    foreign.connection.commit()
    assert [receipt.offset for receipt in sending.result(10)] == [4, 5, 6]
    assert bench.offsets() == list(range(7))


def test_four_writers_and_a_polling_reader_lose_nothing_in_50_000_messages(
    bench: Bench,
) -> None:
    batches, size, seen, stop = 1250, 10, [0, 1, 2], threading.Event()
    messages = [NewMessage(body=b"x" * 50, key="k") for _ in range(size)]

    def read() -> None:
        while not stop.is_set() or len(seen) < bench_head():
            with node_pools.node_of(bench.queue).reading() as session:
                rows = message_sql.select_messages(
                    session,
                    queue=bench.queue,
                    first=seen[-1] + 1,
                    end=seen[-1] + 501,
                    most_bytes=1 << 20,
                )
            seen.extend(row.offset for row in rows)

    def bench_head() -> int:
        with node_pools.node_of(bench.queue).reading() as session:
            head = queue_sql.read_head(session, queue=bench.queue)
        return head.head if head else 0

    with ThreadPoolExecutor(5) as pool:
        reader = pool.submit(read)
        writers = [
            pool.submit(lambda: [bench.send(messages) for _ in range(batches)])
            for _ in range(4)
        ]
        for writer in writers:
            writer.result(120)
        stop.set()
        reader.result(60)
    assert seen == list(range(3 + 4 * batches * size))
    bench.must_be_whole(3 + 4 * batches * size)


def test_a_statement_larger_than_a_packet_is_one_transaction(bench: Bench) -> None:
    packet = int(bench.execute("SELECT @@global.max_allowed_packet")[0][0])
    try:
        bench.server.execute(f"SET GLOBAL max_allowed_packet = {1 << 20}")
        node_pools.node_of(bench.queue).discard()
        bench.send([NewMessage(body=b"\\" * 200_000) for _ in range(10)])
        bench.must_be_whole(13)
    finally:
        bench.server.execute(f"SET GLOBAL max_allowed_packet = {packet}")
        node_pools.node_of(bench.queue).discard()
    assert snapshot.find_topic("orders").queues == (bench.queue,)


def test_an_account_that_may_only_read_is_named_and_writes_nothing(
    bench: Bench, mariadb: MariaDB
) -> None:
    account = f"'reader_{bench.queue}'@'127.0.0.1'"
    bench.execute(f"CREATE USER {account} IDENTIFIED BY 'x'")
    try:
        bench.execute(f"GRANT SELECT ON {bench.schema}.* TO {account}")
        info = replace(
            node_pools.node_of(bench.queue).info,
            username=f"reader_{bench.queue}",
            password="x",
        )
        session = session_pool.connect(info)
        with pytest.raises(StoreCorrupt, match="account lacks a right") as caught:
            queue_sql.set_queue_state(session, queue=bench.queue, state="ro")
        assert not caught.value.retriable
        session.close()
        place = {"host": info.host, "port": info.port, "database": info.database}
        with pytest.raises(Invalid, match="lacks a right") as refused:
            registry.register(
                name="again",
                engine="mysql",
                username=info.username,
                password="x",
                actor=ACTOR,
                **place,
            )
        assert refused.value.code == Code.NODE_REFUSED
    finally:
        bench.execute(f"DROP USER {account}")
    bench.must_be_whole(3)


def test_a_message_larger_than_a_packet_is_too_large_and_stores_nothing(
    bench: Bench,
) -> None:
    before = bench.execute("SELECT @@GLOBAL.max_allowed_packet")[0][0]
    bench.execute("SET GLOBAL max_allowed_packet = 65536")
    try:
        node_pools.evict_all()
        with pytest.raises(TooLarge, match="max_allowed_packet of 65536 bytes"):
            bench.send(
                [
                    NewMessage(body=b"small", key="k"),
                    NewMessage(body=b"x" * 70_000, key="k"),
                ]
            )
    finally:
        bench.execute(f"SET GLOBAL max_allowed_packet = {before}")
        node_pools.evict_all()
    bench.must_be_whole(3)


def test_an_altered_table_is_named_with_what_to_do(bench: Bench) -> None:
    bench.execute("ALTER TABLE {table} DROP COLUMN trace_id")
    with pytest.raises(StoreCorrupt, match="missing or was altered: restore it"):
        bench.send()
    assert bench.head() == 3


def test_an_account_that_lost_the_right_to_write_is_named_and_half_of_nothing_is_stored(
    bench: Bench,
) -> None:
    user = f"'writer_{bench.queue}'@'127.0.0.1'"
    bench.execute(f"CREATE USER {user} IDENTIFIED BY 'x'")
    try:
        bench.execute(f"GRANT ALL ON {{schema}}.* TO {user}")
        sealed = secrets.encrypt("x")
        DbNode.objects.update(username=f"writer_{bench.queue}", password_encrypted=sealed)
        snapshot.evict()
        node_pools.evict_all()
        bench.send()
        for right in ("INSERT", "UPDATE"):
            bench.execute(f"REVOKE {right} ON {{schema}}.* FROM {user}")
            node_pools.evict_all()
            with pytest.raises(StoreCorrupt, match="account lacks a right") as caught:
                bench.send()
            assert not caught.value.retriable
            bench.must_be_whole(6)
        bench.execute(f"GRANT ALL ON {{schema}}.* TO {user}")
        node_pools.evict_all()
        bench.send()
        bench.must_be_whole(9)
    finally:
        bench.execute(f"DROP USER {user}")
