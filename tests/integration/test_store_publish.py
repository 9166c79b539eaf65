"""Sends through the store: routing, once, refusals; on whichever engine is under test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from messagestore.engine import batch_ids, db_errors
from messagestore.engine.messages import NewMessage
from messagestore.pool import node_pools, session_pool
from messagestore.produce import batches
from messagestore.produce.group_commit import BatchWrite
from messagestore.produce.publish import Receipt, publish
from messagestore.tables import message_sql, queue_sql, sql_steps
from messagestore.topology import topics
from metadata.actors import Actor, command
from metadata.cache import snapshot
from metadata.errors import (
    CatmqError,
    Conflict,
    Forbidden,
    Invalid,
    NodeUnavailable,
    NotFound,
    NoWritableQueue,
    OutcomeUnknown,
    StoreCorrupt,
)
from metadata.models import ClockMark
from metadata.nodes import node_rows
from metadata.rules.topics import routing_rules
from metadata.rules.topics.slots import slot_of
from tests.support.rows import long_ago

ACTOR = command("test")


def make_topic(name: str, queues: int = 4, **settings: Any) -> list[int]:
    """A ready topic; its queue ids."""
    state = topics.create(name=name, queues=queues, actor=ACTOR, settings=settings)
    return [queue.queue.queue for queue in state.queues]


def send(topic: str, *messages: NewMessage, batch_id: UUID | None = None) -> list[Any]:
    return publish(topic=topic, messages=messages, batch_id=batch_id, actor=ACTOR)


def stored(queue: int) -> list[bytes]:
    with node_pools.node_of(queue).reading() as session:
        return [
            message.body
            for message in message_sql.select_messages(
                session, queue=queue, first=0, end=10**6, most_bytes=1 << 30
            )
        ]


def close(queue: int) -> None:
    with node_pools.node_of(queue).writing() as session:
        queue_sql.set_queue_state(session, queue=queue, state="ro")


def open_again(queue: int) -> None:
    with node_pools.node_of(queue).writing() as session:
        queue_sql.set_queue_state(session, queue=queue, state="rw")


def test_a_key_always_goes_to_its_slot(node: str) -> None:
    make_topic("orders")
    layout = snapshot.find_topic("orders").layout
    receipts = send(
        "orders", *(NewMessage(body=b"", key=f"k{index % 7}") for index in range(50))
    )
    assert [receipt.queue for receipt in receipts] == [
        layout[slot_of(f"k{index % 7}")] for index in range(50)
    ]


def test_receipts_name_what_is_stored_in_order(node: str) -> None:
    make_topic("orders", 2)
    receipts = send(
        "orders", *(NewMessage(body=b"%d" % index, key=str(index)) for index in range(20))
    )
    for index, receipt in enumerate(receipts):
        assert stored(receipt.queue)[receipt.offset] == b"%d" % index
    assert receipts[0].message_id == f"{receipts[0].queue}-{receipts[0].offset}"


def test_unkeyed_messages_of_a_batch_stay_together_and_batches_spread(node: str) -> None:
    queues = make_topic("orders")
    used = set()
    for _ in range(40):
        batch = send("orders", NewMessage(body=b"a"), NewMessage(body=b"b"))
        assert batch[0].queue == batch[1].queue and batch[1].offset == batch[0].offset + 1
        used.add(batch[0].queue)
    assert used == set(queues)


@pytest.mark.parametrize("keyed", [True, False])
def test_a_repeated_batch_is_stored_once(
    make_node: Callable[..., str], keyed: bool
) -> None:
    make_node("a")
    make_node("b")
    queues = make_topic("orders")
    batch = [
        NewMessage(body=b"%d" % index, key=str(index) if keyed else None)
        for index in range(30)
    ]
    batch_id = batch_ids.new()
    first = send("orders", *batch, batch_id=batch_id)
    assert send("orders", *batch, batch_id=batch_id) == first
    assert sum(len(stored(queue)) for queue in queues) == 30


def test_a_batch_id_used_for_other_messages_is_a_conflict(node: str) -> None:
    (queue,) = make_topic("orders", 1)
    batch_id = batch_ids.new()
    send("orders", NewMessage(body=b"a"), batch_id=batch_id)
    with pytest.raises(Conflict) as caught:
        send("orders", NewMessage(body=b"b"), batch_id=batch_id)
    assert caught.value.code == "batch_conflict"
    assert stored(queue) == [b"a"]


def test_a_batch_id_that_is_no_version_7_is_refused(node: str) -> None:
    make_topic("orders", 1)
    with pytest.raises(Invalid, match="batch_id"):
        send("orders", NewMessage(body=b""), batch_id=uuid4())


def test_a_named_queue_is_used_and_a_foreign_one_refused(node: str) -> None:
    queues = make_topic("orders")
    (other,) = make_topic("other", 1)
    assert send("orders", NewMessage(body=b"", key="k", queue=queues[3])) == [
        Receipt(queues[3], 0)
    ]
    with pytest.raises(NotFound, match=r"messages\[1\].queue"):
        send("orders", NewMessage(body=b""), NewMessage(body=b"", queue=other))
    assert stored(other) == []


def test_an_unkeyed_send_leaves_out_a_closed_queue_and_a_strict_key_waits(
    node: str,
) -> None:
    queues = make_topic("orders", 2)
    close(queues[0])
    for _ in range(10):
        assert send("orders", NewMessage(body=b""))[0].queue == queues[1]
    key = next(
        key
        for key in map(str, range(100))
        if snapshot.find_topic("orders").layout[slot_of(key)] == queues[0]
    )
    with pytest.raises(Conflict) as caught:
        send("orders", NewMessage(body=b"", key=key))
    assert caught.value.code == "queue_not_writable"


def test_a_topic_may_let_keys_move_to_an_open_queue(node: str) -> None:
    queues = make_topic("orders", 2, keyed="available")
    close(queues[0])
    receipts = send(
        "orders", *(NewMessage(body=b"", key=str(index)) for index in range(20))
    )
    assert {receipt.queue for receipt in receipts} == {queues[1]}


def test_a_batch_stored_before_its_queue_closed_is_not_stored_again_elsewhere(
    node: str,
) -> None:
    queues = make_topic("orders", 2)
    batch_id = batch_ids.new()
    first = send("orders", NewMessage(body=b"a"), batch_id=batch_id)
    close(first[0].queue)
    assert send("orders", NewMessage(body=b"a"), batch_id=batch_id) == first
    assert sum(len(stored(queue)) for queue in queues) == 1


def test_a_batch_that_was_sent_before_stays_on_the_node_of_its_first_choice(
    make_node: Callable[..., str],
) -> None:
    """`sent_batch` is per node: on another one, a repeat would not find what is stored
    here.
    """
    make_node("a")
    make_node("b")
    queues = make_topic("orders", 2)
    batch_id = batch_ids.new()
    home = routing_rules.order_queues(batch_id, tuple(queues))[0]
    close(home)
    with pytest.raises(CatmqError):
        send("orders", NewMessage(body=b"x"), batch_id=batch_id)
    open_again(home)
    assert send("orders", NewMessage(body=b"x"), batch_id=batch_id) == [Receipt(home, 0)]
    assert sum(len(stored(queue)) for queue in queues) == 1


def test_a_request_whose_time_is_over_does_not_try_its_other_queues(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = make_topic("orders")
    monkeypatch.setattr("messagestore.produce.publish.DEADLINE_S", -1.0)
    with pytest.raises(CatmqError) as caught:
        send("orders", *(NewMessage(body=b"", queue=queue) for queue in queues))
    assert caught.value.retriable
    assert sum(len(stored(queue)) for queue in queues) == 0


def test_a_send_whose_outcome_is_unknown_tries_no_other_queue(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic("orders")
    tried: list[int] = []

    def unseen(write: BatchWrite, queue: int) -> tuple[int, int]:
        tried.append(queue)
        raise db_errors.Ambiguous("The end was not seen.")

    monkeypatch.setattr(BatchWrite, "store_once", unseen)
    with pytest.raises(OutcomeUnknown):
        send("orders", NewMessage(body=b""))
    assert len(tried) == 1


def test_a_mixed_batch_reports_each_fate(node: str) -> None:
    queues = make_topic("orders", 2)
    close(queues[0])
    fates = send(
        "orders",
        NewMessage(body=b"a", queue=queues[0]),
        NewMessage(body=b"b", queue=queues[1]),
    )
    assert isinstance(fates[0], CatmqError) and fates[0].code == "queue_not_writable"
    assert fates[1] == Receipt(queues[1], 0)


def test_a_named_queue_that_is_not_strict_gives_way_to_an_open_one(node: str) -> None:
    closed, other = make_topic("orders", 2)
    wish = NewMessage(body=b"", key="k", queue=closed, queue_strict=False)
    assert send("orders", wish) == [Receipt(closed, 0)]
    close(closed)
    fates = send("orders", wish, NewMessage(body=b"", key="k", queue=closed), wish)
    assert (fates[0], fates[2]) == (Receipt(other, 0), Receipt(other, 1))
    assert isinstance(fates[1], CatmqError) and fates[1].code == "queue_not_writable"


def test_a_wish_for_a_queue_whose_node_is_away_is_stored_on_another_node(
    make_node: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_node("a")
    make_node("b")
    home, other = make_topic("orders", 2)
    away = node_pools.node_of(home).info.name
    connect = session_pool.connect

    def reachable(info: Any, *args: Any, **more: Any) -> Any:
        if info.name == away:
            raise NodeUnavailable(f"Node {away} is away.")
        return connect(info, *args, **more)

    wish = NewMessage(body=b"x", queue=home, queue_strict=False)
    batch_id = batch_ids.new()
    with monkeypatch.context() as patched:
        patched.setattr(session_pool, "connect", reachable)
        node_pools.evict_all()
        assert send("orders", wish) == [Receipt(other, 0)]
        # It may have been stored by an earlier try, and only the node that is away could
        # tell.
        with pytest.raises(NodeUnavailable):
            send("orders", wish, batch_id=batch_id)
    node_pools.evict_all()
    assert send("orders", wish, batch_id=batch_id) == [Receipt(home, 0)]


def test_a_repeat_of_a_send_that_gave_way_is_stored_once(node: str) -> None:
    closed, other = make_topic("orders", 2)
    close(closed)
    wish, batch_id = (
        NewMessage(body=b"x", queue=closed, queue_strict=False),
        batch_ids.new(),
    )
    assert send("orders", wish, batch_id=batch_id) == [Receipt(other, 0)]
    assert send("orders", wish, batch_id=batch_id) == [Receipt(other, 0)]
    assert len(stored(other)) == 1


def test_a_wish_without_a_queue_is_refused(node: str) -> None:
    make_topic("orders", 1)
    with pytest.raises(Invalid, match=r"messages\[0\].queue_strict"):
        send("orders", NewMessage(body=b"", queue_strict=False))


def test_a_topic_with_every_queue_closed_says_so(node: str) -> None:
    for queue in make_topic("orders", 2):
        close(queue)
    with pytest.raises(NoWritableQueue):
        send("orders", NewMessage(body=b""))


def test_a_head_below_a_stored_message_is_corrupt_and_stores_nothing(node: str) -> None:
    (queue,) = make_topic("orders", 1)
    send("orders", NewMessage(body=b"a"), NewMessage(body=b"b"))
    with node_pools.node_of(queue).writing() as session:
        session.transact(sql_steps.step(session, "delete_head", queue=queue))
        session.transact(sql_steps.step(session, "insert_head", queue=queue, node_epoch=1))
    with pytest.raises(StoreCorrupt):
        send("orders", NewMessage(body=b"c"))
    assert stored(queue) == [b"a", b"b"]


def test_an_offline_node_takes_nothing(node: str) -> None:
    make_topic("orders", 1)
    node_rows.update(name=node, settings={"state": "offline"}, actor=ACTOR)
    snapshot.refresh()
    with pytest.raises(CatmqError) as caught:
        send("orders", NewMessage(body=b""))
    assert caught.value.retriable


def test_sending_needs_the_right_and_an_existing_topic(node: str) -> None:
    make_topic("orders", 1)
    stranger = Actor(kind="key", name="k", rights={"produce": ("other*",)}, key_id=1)
    with pytest.raises(Forbidden, match="produce"):
        publish(
            topic="orders", messages=[NewMessage(body=b"")], batch_id=None, actor=stranger
        )
    with pytest.raises(NotFound, match="catmq topic create"):
        send("nowhere", NewMessage(body=b""))


def test_only_old_batches_are_forgotten_in_chunks(node: str) -> None:
    (queue,) = make_topic("orders", 1)
    batch_id = batch_ids.new()
    first = send("orders", NewMessage(body=b"a"), batch_id=batch_id)
    assert batches.expire() == 0
    assert send("orders", NewMessage(body=b"a"), batch_id=batch_id) == first
    for _ in range(6):
        send("orders", NewMessage(body=b"b"))
    assert batches.expire(hours=-1, chunk=3) == 7
    assert len(stored(queue)) == 7, "messages are not touched"


def test_no_batch_is_forgotten_while_the_clock_cannot_be_trusted(node: str) -> None:
    make_topic("orders", 1)
    send("orders", NewMessage(body=b"a"))
    assert batches.expire() == 0
    # as if the clock had gone so far since then
    ClockMark.objects.update(at=long_ago(seconds=3 * 86_400))
    assert batches.expire(hours=-1) == 0
    ClockMark.objects.all().delete()
    assert batches.expire(hours=-1) == 1
