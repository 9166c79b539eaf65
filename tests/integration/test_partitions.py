"""Partitions: made ahead of the head, or by a send that meets the end; odd ones are named."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from messagestore.engine import db_errors
from messagestore.engine.messages import NewMessage
from messagestore.heads import partitions
from messagestore.pool import node_pools
from messagestore.produce.publish import Receipt, publish
from messagestore.tables import audit_sql, partition_sql, queue_sql
from messagestore.topology import topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.errors import CatmqError, NodeUnavailable
from tests.support.environment import ENGINE
from tests.support.mariadb import MariaDB
from tests.support.tampering import plant

ACTOR = command("test")
partitioned = pytest.mark.skipif(ENGINE != "mysql", reason="SQLite has no partitions")
InThreads = Callable[..., list[object]]


@pytest.fixture
def queue(node: str) -> int:
    """The queue of topic `orders`."""
    made = topics.create(name="orders", queues=1, actor=ACTOR)
    snapshot.refresh()
    return made.queues[0].queue.queue


def ends(queue: int) -> list[int]:
    with node_pools.node_of(queue).reading() as session:
        return [one.end for one in partition_sql.list_partitions(session, queue=queue)]


def send(queue: int, count: int = 2) -> list[Receipt | CatmqError]:
    messages = [NewMessage(body=b"m", queue=queue) for _ in range(count)]
    return publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)


def start_at(queue: int, head: int) -> None:
    """The queue as if so much had been written and cleaned before."""
    plant(
        queue, f"UPDATE queue_head SET head = {head}, low = {head} WHERE queue_id = {{q}}"
    )


def test_a_queue_begins_with_three_partitions_or_none(queue: int) -> None:
    assert ends(queue) == ([100_000, 200_000, 300_000] if ENGINE == "mysql" else [])


def test_nothing_is_made_while_three_end_above_the_head(queue: int) -> None:
    start_at(queue, 99_999)
    assert partitions.extend(queue) == (100_000 if ENGINE == "mysql" else partitions.NEVER)
    assert len(ends(queue)) in (0, 3)


@partitioned
def test_a_send_that_meets_the_end_makes_partitions_and_is_stored_once(queue: int) -> None:
    start_at(queue, 299_999)
    (first, second) = send(queue)  # the second message is the first that has no partition
    assert (first, second) == (Receipt(queue, 299_999), Receipt(queue, 300_000))
    assert (
        ends(queue)
        == [100_000, 200_000, 300_000, 310_000, 320_000, 330_000][: len(ends(queue))]
    )
    assert sum(end > 300_001 for end in ends(queue)) >= 2
    with node_pools.node_of(queue).reading() as session:
        head = queue_sql.read_head(session, queue=queue)
        assert head is not None and head.head == 300_001
        assert audit_sql.count_rows(session, queue=queue, first=0, end=400_000).rows == 2


@partitioned
def test_many_senders_that_meet_the_end_at_once_are_all_stored(
    queue: int, in_threads: InThreads
) -> None:
    start_at(queue, 300_000)
    fates = in_threads([lambda: send(queue, 3)] * 6)
    stored = sorted(fate.offset for part in fates for fate in part)  # type: ignore[attr-defined]
    assert stored == list(range(300_000, 300_018))
    assert len(ends(queue)) == 6


@partitioned
def test_the_loop_makes_them_before_they_are_needed_and_then_rests(queue: int) -> None:
    ahead = partitions.Ahead()
    assert ahead.run_once() == 1  # the first look at a queue
    assert ahead.run_once() == 0
    start_at(queue, 100_000)
    assert ahead.run_once() == 1
    assert ends(queue) == [100_000, 200_000, 300_000, 310_000]
    assert ahead.run_once() == 0


@partitioned
def test_a_queue_that_is_filled_fast_gets_ones_that_last(queue: int) -> None:
    send(queue, 2)
    # 100,000 within 4 s, as if all but two were gone: 20 s of that, and the time of the
    # test.
    plant(queue, "UPDATE queue_head SET head = 100000 WHERE queue_id = {q}")
    plant(queue, "UPDATE message_{q} SET stored_at = stored_at - INTERVAL 4 SECOND")
    plant(queue, "UPDATE message_{q} SET msg_offset = 99999 WHERE msg_offset = 1")
    partitions.extend(queue)
    (made,) = ends(queue)[3:]
    assert 400_000 <= made - 300_000 <= 500_000


@partitioned
def test_tables_are_changed_one_after_the_other(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []
    monkeypatch.setattr(partitions.time, "sleep", paused.append)
    ahead = partitions.Ahead()
    assert (ahead.run_once(), paused) == (1, [])
    start_at(queue, 100_000)
    assert (ahead.run_once(), paused) == (1, [partitions.APART_S])


@partitioned
def test_the_size_of_new_ones_follows_the_rate(queue: int) -> None:
    send(queue, 1)
    # 36,000 in the first hour are 10/s: a 50th of seven days of that is 120,960, in two
    # digits.
    plant(queue, "UPDATE queue_head SET head = 200000 WHERE queue_id = {q}")
    plant(queue, "UPDATE message_{q} SET stored_at = stored_at - INTERVAL 20000 SECOND")
    partitions.extend(queue)
    assert ends(queue)[3:] == [300_000 + 120_000, 300_000 + 240_000]


@partitioned
def test_a_table_in_a_long_transaction_is_left_alone_until_a_send_needs_it(
    queue: int, mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "LONG_S", 0)
    monkeypatch.setattr(partitions, "PAUSE_S", 0.01)
    start_at(queue, 100_000)
    with closing(mariadb.connect(db=node_pools.node_of(queue).info.database)) as foreign:
        cursor = foreign.cursor()
        cursor.execute("START TRANSACTION")
        cursor.execute("SELECT * FROM queue_head")
        cursor.execute("SELECT SLEEP(1.1)")
        with pytest.raises(NodeUnavailable, match="transaction open"):
            partitions.extend(queue, urgent=False)
        assert partitions.extend(queue) == 200_000
        foreign.rollback()


@partitioned
def test_a_change_that_cannot_have_the_table_gives_up_and_lets_writers_through(
    queue: int, mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "TRIES", 1)
    start_at(queue, 100_000)
    with closing(mariadb.connect(db=node_pools.node_of(queue).info.database)) as foreign:
        foreign.autocommit(False)
        foreign.cursor().execute(f"SELECT * FROM message_{queue}")
        with pytest.raises(NodeUnavailable, match="1205"):
            partitions.extend(queue)
        assert send(queue) == [Receipt(queue, 100_000), Receipt(queue, 100_001)]
        foreign.rollback()
    assert partitions.extend(queue) == 200_000


@partitioned
def test_a_table_without_partitions_is_written_and_never_extended(queue: int) -> None:
    plant(queue, "ALTER TABLE message_{q} REMOVE PARTITIONING")
    assert partitions.extend(queue) == partitions.NEVER
    start_at(queue, 10**9)
    assert send(queue) == [Receipt(queue, 10**9), Receipt(queue, 10**9 + 1)]


@partitioned
@pytest.mark.parametrize(
    ("statement", "named"),
    [
        (
            "ALTER TABLE message_{q} ADD PARTITION (PARTITION p VALUES LESS THAN MAXVALUE)",
            "MAXVALUE",
        ),
        ("ALTER TABLE message_{q} PARTITION BY HASH (msg_offset) PARTITIONS 2", "HASH"),
        ("DROP TABLE message_{q}", "missing"),
    ],
)
def test_a_table_that_was_altered_is_named(queue: int, statement: str, named: str) -> None:
    plant(queue, statement)
    with pytest.raises(db_errors.Altered, match=named):
        partitions.extend(queue)
    assert partitions.Ahead().run_once() == 1  # said in the log; the loop goes on


@partitioned
def test_an_account_that_may_not_see_other_connections_serves_as_well(
    mariadb: MariaDB, make_node: Callable[..., str]
) -> None:
    mariadb.execute("CREATE USER IF NOT EXISTS narrow@'%' IDENTIFIED BY 'narrow'")
    mariadb.execute("GRANT ALL ON `test\\_%`.* TO narrow@'%'")
    make_node("main", username="narrow", password="narrow")
    queue = topics.create(name="orders", queues=1, actor=ACTOR).queues[0].queue.queue
    start_at(queue, 100_000)
    assert partitions.extend(queue, urgent=False) == 200_000
    with node_pools.node_of(queue).reading() as session:
        assert partition_sql.read_used_bytes(session)[0] > 100_000
    assert send(queue) == [Receipt(queue, 100_000), Receipt(queue, 100_001)]
