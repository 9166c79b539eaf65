"""The conformance suite of the storage verbs: every engine passes it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from messagestore.engine import batch_ids, db_errors
from messagestore.engine.messages import NewMessage, digest
from messagestore.engine.mysql_session import MySqlSession, Session
from messagestore.engine.sqlite_session import SqliteSession
from messagestore.pool import session_pool
from messagestore.tables import (
    message_sql,
    node_sql,
    partition_sql,
    queue_sql,
    reader_sql,
    shapes,
)
from messagestore.tables.shapes import NewBatch, ReaderKey
from messagestore.tables.sql_steps import step
from metadata.cache.snapshot_types import NodeInfo

_queues = count(1)
Connect = Callable[[], Session]


@pytest.fixture
def connect(node_database: Callable[..., dict[str, Any]]) -> Iterator[Connect]:
    """A function that makes one more session on the test's node."""
    given = node_database()
    info = NodeInfo(
        id=1,
        name="n",
        kind="normal",
        state="read_write",
        dedicated=False,
        epoch=1,
        capacity_gb=None,
        **given,
    )
    made: list[Session] = []

    def make() -> Session:
        made.append(session_pool.connect(info))
        return made[-1]

    yield make
    for session in made:
        session.close()


@pytest.fixture
def session(connect: Connect) -> Session:
    """A session on a node that has its tables."""
    session = connect()
    node_sql.create_node_tables(session)
    return session


@pytest.fixture
def queue(session: Session) -> int:
    """A queue of node epoch 1."""
    queue = next(_queues)
    queue_sql.create_queue(session, queue=queue, node_epoch=1)
    return queue


def batch(size: int, body: bytes = b"m") -> list[NewMessage]:
    return [NewMessage(body=body + b"%d" % index) for index in range(size)]


def insert(
    session: Session,
    queue: int,
    messages: list[NewMessage],
    *,
    batch_id: bytes = b"",
    node_epoch: int = 1,
) -> int:
    batch = NewBatch(batch_id or batch_ids.new().bytes, digest(messages), messages, "test")
    return message_sql.insert_messages(
        session, queue=queue, node_epoch=node_epoch, batches=[batch]
    )


def offsets(session: Session, queue: int) -> list[int]:
    return [
        message.offset
        for message in message_sql.select_messages(
            session, queue=queue, first=0, end=10**9, most_bytes=1 << 30
        )
    ]


def test_offsets_are_dense_from_zero(session: Session, queue: int) -> None:
    assert [insert(session, queue, batch(size)) for size in (1, 3, 2)] == [0, 1, 4]
    assert offsets(session, queue) == list(range(6))
    assert queue_sql.read_head(session, queue=queue) == shapes.Head(6, 0, "rw", 1)


def test_batches_of_one_transaction_lie_one_behind_the_other(
    session: Session, queue: int
) -> None:
    insert(session, queue, batch(2))
    sizes = (1, 3, 2)
    together = [
        NewBatch(
            batch_ids.new().bytes, digest(batch(size)), batch(size, b"%d-" % size), "p"
        )
        for size in sizes
    ]
    assert (
        message_sql.insert_messages(session, queue=queue, node_epoch=1, batches=together)
        == 2
    )
    known = [message_sql.find_batch(session, batch_id=one.batch_id) for one in together]
    assert [(one.first_offset, one.message_count) for one in known if one] == [
        (2, 1),
        (3, 3),
        (6, 2),
    ]
    bodies = message_sql.select_messages(
        session, queue=queue, first=2, end=9, most_bytes=1 << 20
    )
    assert [one.body for one in bodies] == [b"1-0", b"3-0", b"3-1", b"3-2", b"2-0", b"2-1"]
    with pytest.raises(db_errors.Duplicate):
        message_sql.insert_messages(
            session, queue=queue, node_epoch=1,
            batches=[NewBatch(batch_ids.new().bytes, digest(batch(1)), batch(1), "p"), together[0]],
        )  # fmt: skip
    assert len(offsets(session, queue)) == 8, "all or nothing"


def test_queues_of_a_node_count_by_themselves(session: Session, queue: int) -> None:
    other = next(_queues)
    queue_sql.create_queue(session, queue=other, node_epoch=1)
    insert(session, queue, batch(5))
    assert insert(session, other, batch(1)) == 0
    assert queue_sql.read_heads(session, queues=[queue, other]) == {queue: 5, other: 1}
    assert queue_sql.read_heads(session, queues=None) == {queue: 5, other: 1}
    assert queue_sql.read_heads(session, queues=[]) == {}


def test_the_heads_that_lately_moved_are_those_of_queues_stored_to_lately(
    session: Session, queue: int
) -> None:
    insert(session, queue, batch(2))
    assert queue_sql.read_recent_heads(session, seconds=30) == {queue: 2}
    assert queue_sql.read_recent_heads(session, seconds=-30) == {}, (
        "as if it were that much later"
    )


def test_a_message_comes_back_as_it_went_in(session: Session, queue: int) -> None:
    sent = NewMessage(
        body=bytes(range(256)),
        key="é'\\\"%s\x00",
        tag="new",
        headers={"h": "ö:'"},
        trace_id="t-1",
    )
    insert(session, queue, [sent])
    (got,) = message_sql.select_messages(
        session, queue=queue, first=0, end=1, most_bytes=1 << 30
    )
    assert (got.body, got.key, got.tag, got.headers, got.trace_id) == (
        sent.body,
        sent.key,
        sent.tag,
        sent.headers,
        "t-1",
    )
    assert (got.queue, got.offset, got.message_id, got.attempt) == (
        queue,
        0,
        f"{queue}-0",
        0,
    )


def test_absent_fields_are_none_and_an_empty_body_is_empty(
    session: Session, queue: int
) -> None:
    insert(session, queue, [NewMessage(body=b"")])
    (got,) = message_sql.select_messages(
        session, queue=queue, first=0, end=1, most_bytes=1 << 30
    )
    assert (got.body, got.key, got.tag, got.headers, got.trace_id) == (
        b"",
        None,
        None,
        None,
        None,
    )


def test_keys_that_a_collation_would_merge_stay_apart(session: Session, queue: int) -> None:
    keys = ["Orders", "orders", "orders ", "ördérs"]
    insert(session, queue, [NewMessage(body=b"", key=key) for key in keys])
    assert [
        message.key
        for message in message_sql.select_messages(
            session, queue=queue, first=0, end=9, most_bytes=1 << 30
        )
    ] == keys


def test_a_write_to_a_dropped_queue_stores_nothing(session: Session, queue: int) -> None:
    insert(session, queue, batch(2))
    queue_sql.drop_queue(session, queue=queue)
    with pytest.raises(db_errors.RolledBack):
        insert(session, queue, batch(3))
    queue_sql.create_queue(session, queue=queue, node_epoch=1)
    assert insert(session, queue, batch(1)) == 0


def test_a_known_batch_id_is_a_duplicate_and_leaves_no_hole(
    session: Session, queue: int
) -> None:
    batch_id = batch_ids.new().bytes
    insert(session, queue, batch(3), batch_id=batch_id)
    with pytest.raises(db_errors.Duplicate):
        insert(session, queue, batch(3), batch_id=batch_id)
    assert session.clean
    known = message_sql.find_batch(session, batch_id=batch_id)
    assert known == shapes.SentBatch(queue, 0, 3, digest(batch(3)))
    assert insert(session, queue, batch(1)) == 3


def test_an_unknown_batch_id_is_not_found(session: Session, queue: int) -> None:
    assert message_sql.find_batch(session, batch_id=batch_ids.new().bytes) is None


@pytest.mark.parametrize("state", ["ro", "retired"])
def test_a_closed_queue_refuses_and_an_opened_one_takes(
    session: Session, queue: int, state: str
) -> None:
    queue_sql.set_queue_state(session, queue=queue, state=state)
    with pytest.raises(db_errors.Refused):
        insert(session, queue, batch(1))
    queue_sql.set_queue_state(session, queue=queue, state="rw")
    assert insert(session, queue, batch(1)) == 0


def test_a_missing_head_row_and_another_node_epoch_refuse(
    session: Session, queue: int
) -> None:
    with pytest.raises(db_errors.Refused):
        insert(session, queue, batch(1), node_epoch=2)
    with pytest.raises(db_errors.RolledBack):
        insert(session, next(_queues), batch(1))
    assert insert(session, queue, batch(1)) == 0


def test_a_refused_write_does_not_use_the_offsets_of_an_earlier_one(
    session: Session, queue: int
) -> None:
    insert(session, queue, batch(7))
    closed = next(_queues)
    queue_sql.create_queue(session, queue=closed, node_epoch=1)
    queue_sql.set_queue_state(session, queue=closed, state="ro")
    with pytest.raises(db_errors.Refused):
        insert(session, closed, batch(1))
    assert offsets(session, closed) == []


def test_stored_at_never_falls_within_a_queue(session: Session, queue: int) -> None:
    for _ in range(20):
        insert(session, queue, batch(2))
    times = [
        message.stored_at_ms
        for message in message_sql.select_messages(
            session, queue=queue, first=0, end=100, most_bytes=1 << 30
        )
    ]
    assert times == sorted(times)
    assert abs(times[-1] - node_sql.now_ms(session)) < 60_000
    assert message_sql.read_stored_at_ms(session, queue=queue, offset=39) == times[39]
    assert message_sql.read_stored_at_ms(session, queue=queue, offset=40) is None


def test_after_a_clock_went_back_messages_have_the_time_of_the_last_one(
    session: Session, queue: int
) -> None:
    ahead = "INTERVAL 1 HOUR" if session.engine == "mysql" else "3600000"
    statement = (
        f"UPDATE queue_head SET last_stored_at = last_stored_at + {ahead} WHERE "
        f"queue_id = {queue}"
    )
    if isinstance(session, MySqlSession):
        session.send(statement.encode(), statements=1)
    elif isinstance(session, SqliteSession):
        with session.transaction() as database:
            database.execute(statement)
    insert(session, queue, batch(1))
    stored_at_ms = message_sql.read_stored_at_ms(session, queue=queue, offset=0)
    assert stored_at_ms is not None
    assert stored_at_ms > node_sql.now_ms(session) + 3_000_000


def test_low_rises_up_to_the_head_and_never_falls(session: Session, queue: int) -> None:
    insert(session, queue, batch(5))
    raised = [
        partition_sql.raise_low(session, queue=queue, low=low) for low in (3, 2, 6, 5)
    ]
    assert raised == [True, False, False, True]
    assert queue_sql.read_head(session, queue=queue) == shapes.Head(5, 5, "rw", 1)


def test_creating_a_queue_again_changes_nothing(session: Session, queue: int) -> None:
    insert(session, queue, batch(2))
    queue_sql.create_queue(session, queue=queue, node_epoch=9)
    node_sql.create_node_tables(session)
    assert queue_sql.read_head(session, queue=queue) == shapes.Head(2, 0, "rw", 1)


def test_an_unused_queue_is_made_again_and_a_used_one_is_left_alone(
    session: Session, queue: int
) -> None:
    assert queue_sql.create_queue(session, queue=queue, node_epoch=1, unused=True)
    insert(session, queue, batch(2))
    assert not queue_sql.create_queue(session, queue=queue, node_epoch=1, unused=True)
    queue_sql.drop_queue(session, queue=queue, unused=True)
    assert offsets(session, queue) == [0, 1]
    partition_sql.raise_low(session, queue=queue, low=2)
    assert partition_sql.delete_below(session, queue=queue, end=2) == 2
    assert not queue_sql.create_queue(session, queue=queue, node_epoch=1, unused=True), (
        "its head is 2"
    )
    queue_sql.drop_queue(session, queue=queue)
    assert queue_sql.create_queue(session, queue=queue, node_epoch=1, unused=True)
    queue_sql.drop_queue(session, queue=queue, unused=True)
    assert queue_sql.read_head(session, queue=queue) is None


def test_messages_without_a_head_row_are_those_of_a_used_queue(
    session: Session, queue: int
) -> None:
    insert(session, queue, batch(2))
    session.run(step(session, "delete_head", queue=queue))
    assert not queue_sql.create_queue(session, queue=queue, node_epoch=1, unused=True)
    assert queue_sql.read_head(session, queue=queue) is None


def test_a_dropped_queue_leaves_nothing(session: Session, queue: int) -> None:
    reader_sql.insert_readers(session, group_id=1, queues=[queue], epoch=0, latest=False)
    queue_sql.drop_queue(session, queue=queue)
    queue_sql.drop_queue(session, queue=queue)
    assert queue_sql.read_head(session, queue=queue) is None
    queue_sql.create_queue(session, queue=queue, node_epoch=1)
    assert (
        reader_sql.read_positions(session, group_id=1, queues=[queue])[queue].committed
        is None
    )


def test_a_reader_starts_at_the_low_or_at_the_head(session: Session, queue: int) -> None:
    insert(session, queue, batch(4))
    reader_sql.insert_readers(session, group_id=1, queues=[queue], epoch=0, latest=False)
    reader_sql.insert_readers(session, group_id=2, queues=[queue], epoch=0, latest=True)
    reader_sql.insert_readers(session, group_id=2, queues=[queue], epoch=0, latest=False)
    assert (
        reader_sql.read_positions(session, group_id=1, queues=[queue])[queue].committed == 0
    )
    assert (
        reader_sql.read_positions(session, group_id=2, queues=[queue])[queue].committed == 4
    )


def test_of_two_owners_the_later_epoch_holds(session: Session, queue: int) -> None:
    reader = ReaderKey(1, queue)
    assert reader_sql.acquire_reader(session, reader=reader, epoch=1, owner="a") is None
    reader_sql.insert_readers(session, group_id=1, queues=[queue], epoch=0, latest=False)
    assert reader_sql.acquire_reader(session, reader=reader, epoch=1, owner="a") == (
        1,
        "a",
        0,
    )
    assert reader_sql.acquire_reader(session, reader=reader, epoch=1, owner="a") == (
        1,
        "a",
        0,
    )
    assert reader_sql.acquire_reader(session, reader=reader, epoch=1, owner="b") == (
        1,
        "a",
        0,
    )
    assert reader_sql.acquire_reader(session, reader=reader, epoch=2, owner="b") == (
        2,
        "b",
        0,
    )
    assert reader_sql.acquire_reader(session, reader=reader, epoch=1, owner="a") == (
        2,
        "b",
        0,
    )


def test_a_commit_needs_epoch_and_owner_and_an_offset_up_to_the_head(
    session: Session, queue: int
) -> None:
    insert(session, queue, batch(5))
    reader = ReaderKey(1, queue)
    reader_sql.insert_readers(session, group_id=1, queues=[queue], epoch=0, latest=False)
    reader_sql.acquire_reader(session, reader=reader, epoch=3, owner="me")

    def commit(owner: str, epoch: int, offset: int) -> int | None:
        return reader_sql.update_committed(
            session, group_id=1, owner=owner, offsets=[(queue, epoch, offset)]
        )[0]

    assert (commit("me", 3, 2), commit("me", 3, 5)) == (2, 3)
    assert commit("me", 3, 5) == 0, "a repeated commit is not fenced"
    assert [
        commit("me", 3, 6),
        commit("me", 2, 1),
        commit("me", 4, 1),
        commit("you", 3, 1),
    ] == [None] * 4
    assert commit("me", 3, 2) == 0, "a lower one is allowed and changes nothing"
    assert (
        reader_sql.read_positions(session, group_id=1, queues=[queue])[queue].committed == 5
    )


def test_each_queue_of_a_commit_has_its_own_fate(session: Session, queue: int) -> None:
    other = next(_queues)
    queue_sql.create_queue(session, queue=other, node_epoch=1)
    for one in (queue, other):
        insert(session, one, batch(2))
        reader_sql.insert_readers(session, group_id=1, queues=[one], epoch=0, latest=False)
        reader_sql.acquire_reader(session, reader=ReaderKey(1, one), epoch=1, owner="me")
    done = reader_sql.update_committed(
        session, group_id=1, owner="me", offsets=[(queue, 9, 1), (other, 1, 2)]
    )
    assert done == [None, 2]


def test_a_reset_fences_the_owner_and_may_go_back(session: Session, queue: int) -> None:
    insert(session, queue, batch(5))
    reader = ReaderKey(1, queue)
    reader_sql.insert_readers(session, group_id=1, queues=[queue], epoch=0, latest=True)
    reader_sql.acquire_reader(session, reader=reader, epoch=4, owner="me")
    assert reader_sql.reset_reader(session, reader=reader, offset=1) == (5, 5)
    assert reader_sql.update_committed(
        session, group_id=1, owner="me", offsets=[(queue, 4, 5)]
    ) == [None]
    assert reader_sql.acquire_reader(session, reader=reader, epoch=6, owner="me") == (
        6,
        "me",
        1,
    )


def test_an_owned_read_shows_position_and_messages(session: Session, queue: int) -> None:
    insert(session, queue, batch(5))
    reader = ReaderKey(1, queue)
    reader_sql.insert_readers(session, group_id=1, queues=[queue], epoch=0, latest=False)
    reader_sql.acquire_reader(session, reader=reader, epoch=1, owner="me")
    positions, rows, _ = message_sql.read_positions_and_rows(
        session, reader=reader, first=1, end=4, most_bytes=99
    )
    position = positions[reader.queue]
    assert position == shapes.Position(queue, 5, 0, 1, "me", 0)
    assert [row[0] for row in rows] == [1, 2, 3]


def test_batches_of_many_writers_never_interleave(
    connect: Connect, session: Session, queue: int, in_threads: Callable[..., list[Any]]
) -> None:
    def writer(name: int) -> Callable[[], list[int]]:
        mine = connect()
        return lambda: [insert(mine, queue, batch(5, b"%d-" % name)) for _ in range(20)]

    firsts = in_threads([writer(name) for name in range(4)])
    assert sorted(first for written in firsts for first in written) == list(
        range(0, 400, 5)
    )
    bodies = [
        message.body.split(b"-")[0]
        for message in message_sql.select_messages(
            session, queue=queue, first=0, end=400, most_bytes=1 << 30
        )
    ]
    assert all(len(set(bodies[first : first + 5])) == 1 for first in range(0, 400, 5))


def test_large_messages_of_random_bytes_come_back(session: Session, queue: int) -> None:
    block = b"".join(hashlib.sha256(b"%d" % index).digest() for index in range(32_768))
    insert(session, queue, [NewMessage(body=block) for _ in range(12)])
    got = message_sql.select_messages(
        session, queue=queue, first=0, end=12, most_bytes=1 << 30
    )
    assert [message.body == block for message in got] == [True] * 12
