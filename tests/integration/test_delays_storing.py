"""Messages that wait for their time are stored once, also on nodes of an earlier version."""

from __future__ import annotations

from typing import Any

import pytest

from messagestore.engine import batch_ids, db_errors
from messagestore.engine.messages import NewMessage
from messagestore.pool import node_pools
from messagestore.produce import delayed_store
from messagestore.produce.delayed_store import DelayedReceipt
from messagestore.tables import node_sql
from messagestore.tables.shapes import NewDelayed
from messagestore.topology import topics
from metadata.actors import command
from metadata.errors import Conflict, NodeUnavailable
from tests.support.tampering import look, plant

ACTOR = command("test")
HOUR_MS = 3_600_000


@pytest.fixture
def queue(node: str) -> int:
    """The queue of a topic that has one."""
    return topics.create(name="orders", queues=1, actor=ACTOR).queues[0].queue.queue


def store(
    queue: int, *bodies: bytes, batch_id: bytes | None = None, **more: Any
) -> list[DelayedReceipt]:
    waiting = [
        NewDelayed(NewMessage(body=body, delay_ms=HOUR_MS), **more) for body in bodies
    ]
    chosen = batch_id or batch_ids.new().bytes
    return delayed_store.store(
        queue=queue, messages=waiting, batch_id=chosen, producer="test"
    )


def now_ms(queue: int) -> int:
    with node_pools.node_of(queue).reading() as session:
        return node_sql.now_ms(session)


def test_a_delayed_message_waits_in_the_table_of_its_node_with_all_it_has(
    queue: int,
) -> None:
    message = NewMessage(
        body=b"\x00\xffbody",
        key="Kunde ü",
        tag="neu",
        headers={"h": "1"},
        trace_id="t",
        delay_ms=HOUR_MS,
    )
    row = NewDelayed(message, by_key=True, attempt=3, origin='{"queue":1}')
    before = now_ms(queue)
    (receipt,) = delayed_store.store(
        queue=queue, messages=[row], batch_id=batch_ids.new().bytes, producer="me"
    )
    assert before + HOUR_MS <= receipt.due_at_ms <= now_ms(queue) + HOUR_MS
    assert receipt.message_id == f"d{receipt.node_id}-{receipt.row}"
    columns = (
        "id, queue_id, by_key, msg_key, tag, headers, body, trace_id, producer, "
        "attempt, origin"
    )
    assert look(queue, f"SELECT {columns} FROM delayed_message") == [
        (
            receipt.row,
            queue,
            1,
            "Kunde ü",
            "neu",
            '{"h":"1"}',
            b"\x00\xffbody",
            "t",
            "me",
            3,
            '{"queue":1}',
        )
    ]


def test_a_time_of_delivery_is_kept_to_the_millisecond(queue: int, engine: str) -> None:
    at_ms = now_ms(queue) + 86_400_123
    message = NewMessage(body=b"x", deliver_at_ms=at_ms)
    batch_id = batch_ids.new().bytes
    (receipt,) = delayed_store.store(
        queue=queue, messages=[NewDelayed(message)], batch_id=batch_id, producer="p"
    )
    assert receipt.due_at_ms == at_ms
    due = (
        "due_at"
        if engine == "sqlite"
        else "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', due_at) DIV 1000"
    )
    assert look(queue, f"SELECT id, {due} FROM delayed_message") == [(receipt.row, at_ms)]


def test_a_repeat_answers_the_same_ids_and_stores_nothing(queue: int) -> None:
    batch_id = batch_ids.new().bytes
    first = store(queue, b"a", b"b", b"c", batch_id=batch_id)
    assert store(queue, b"a", b"b", b"c", batch_id=batch_id) == first
    assert [one.row - first[0].row for one in first] == [0, 1, 2]
    assert look(queue, "SELECT COUNT(*) FROM delayed_message") == [(3,)]


def test_a_repeat_answers_the_same_ids_when_the_rows_are_gone(queue: int) -> None:
    batch_id = batch_ids.new().bytes
    first = store(queue, b"a", b"b", batch_id=batch_id)
    plant(queue, "DELETE FROM delayed_message")
    assert store(queue, b"a", b"b", batch_id=batch_id) == first
    assert look(queue, "SELECT COUNT(*) FROM delayed_message") == [(0,)]


def test_a_repeat_after_the_batch_was_forgotten_finds_the_rows(queue: int) -> None:
    batch_id = batch_ids.new().bytes
    first = store(queue, b"a", b"b", batch_id=batch_id)
    plant(queue, "DELETE FROM sent_batch")
    plant(queue, f"DELETE FROM delayed_message WHERE id = {first[0].row}")
    assert store(queue, b"a", b"b", batch_id=batch_id) == first


def test_the_same_id_for_other_messages_or_another_delay_is_refused(queue: int) -> None:
    batch_id = batch_ids.new().bytes
    store(queue, b"a", batch_id=batch_id)
    for other in ({"body": b"b", "delay_ms": HOUR_MS}, {"body": b"a", "delay_ms": 1}):
        with pytest.raises(Conflict, match="already used"):
            delayed_store.store(
                queue=queue,
                messages=[NewDelayed(NewMessage(**other))],
                batch_id=batch_id,
                producer="test",
            )


def test_two_repeats_at_once_store_it_once(queue: int, in_threads: Any) -> None:
    batch_id = batch_ids.new().bytes
    answers = in_threads([lambda: store(queue, b"a", b"b", batch_id=batch_id)] * 4)
    assert all(answer == answers[0] for answer in answers)
    assert look(queue, "SELECT COUNT(*) FROM delayed_message") == [(2,)]


def test_numbers_of_deleted_rows_are_not_given_again(queue: int) -> None:
    (first,) = store(queue, b"a")
    plant(queue, "DELETE FROM delayed_message")
    (second,) = store(queue, b"b")
    assert second.row > first.row


def test_a_closed_queue_refuses_delayed_messages_but_knows_a_batch_it_has(
    queue: int,
) -> None:
    batch_id = batch_ids.new().bytes
    first = store(queue, b"a", batch_id=batch_id)
    plant(queue, "UPDATE queue_head SET state = 'ro'")
    with pytest.raises(Conflict, match="read-only"):
        store(queue, b"b")
    assert store(queue, b"a", batch_id=batch_id) == first


def test_a_node_of_an_earlier_version_gets_the_table(queue: int) -> None:
    plant(queue, "DROP TABLE delayed_message")
    delayed_store.evict_all()
    assert len(store(queue, b"a")) == 1


def test_a_stale_picture_of_the_node_stores_nothing(queue: int) -> None:
    plant(queue, "UPDATE queue_head SET node_epoch = 7")
    with pytest.raises(Exception, match="node epoch 7, metadata has 1"):
        store(queue, b"a")
    assert look(queue, "SELECT COUNT(*) FROM delayed_message") == [(0,)]


def test_a_table_that_could_not_be_made_is_made_at_the_next_call(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(session: object) -> None:
        raise db_errors.from_mysql(1114, "The table is full", "main")

    delayed_store.evict_all()
    with monkeypatch.context() as patched:
        patched.setattr(node_sql, "create_node_tables", full)
        with pytest.raises(NodeUnavailable, match="Free or add disk space"):
            delayed_store.prepare(node_pools.node_of(queue))
    made = []
    monkeypatch.setattr(node_sql, "create_node_tables", made.append)
    delayed_store.prepare(node_pools.node_of(queue))
    delayed_store.prepare(node_pools.node_of(queue))
    assert len(made) == 1


def test_a_node_that_takes_no_writes_is_asked_for_its_table_once(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def read_only(session: object) -> None:
        asked.append(1)
        raise db_errors.from_mysql(1290, "The server is running with --read-only", "main")

    delayed_store.evict_all()
    monkeypatch.setattr(node_sql, "create_node_tables", read_only)
    for _ in range(3):
        delayed_store.prepare(node_pools.node_of(queue))
    assert len(asked) == 1
    delayed_store.evict_all()


def test_a_node_that_is_lost_while_its_table_is_made_is_away_and_nothing_is_in_doubt(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(session: object) -> None:
        raise db_errors.Ambiguous("Node main answered 2013: Lost connection")

    delayed_store.evict_all()
    with monkeypatch.context() as patched:
        patched.setattr(node_sql, "create_node_tables", lost)
        with pytest.raises(NodeUnavailable, match="Node main"):
            delayed_store.prepare(node_pools.node_of(queue))
    delayed_store.prepare(node_pools.node_of(queue))
