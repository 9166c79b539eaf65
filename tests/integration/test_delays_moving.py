"""Due messages come into their queues: each exactly once, in the order of their times,
where they belong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from messagestore.engine import db_errors
from messagestore.engine.messages import NewMessage
from messagestore.heads import partitions
from messagestore.pool import node_pools, session_pool
from messagestore.produce import (
    delayed_admin,
    delayed_delivery,
    delayed_reassignment,
    delayed_store,
)
from messagestore.produce.delayed_delivery import DelayedDelivery
from messagestore.produce.publish import Receipt, publish
from messagestore.tables import delayed_sql, delivery_sql, message_sql, node_sql
from messagestore.topology import queues, topics
from messagestore.verify import verify
from metadata.actors import Actor, command
from metadata.cache import snapshot
from metadata.errors import (
    CatmqError,
    Conflict,
    Forbidden,
    Invalid,
    NodeUnavailable,
    NotFound,
)
from metadata.nodes import node_rows
from metadata.rules.topics.slots import slot_of
from tests.support.moving import HOUR_MS, bodies, delay, make_due, mover, stored
from tests.support.moving import waiting as rows
from tests.support.tampering import look, plant
from tests.support.waiting import until

ACTOR = command("test")


def make_topic(name: str = "orders", queues: int = 1, **settings: Any) -> list[int]:
    state = topics.create(name=name, queues=queues, actor=ACTOR, settings=settings)
    return [one.queue.queue for one in state.queues]


def test_a_due_message_moves_with_all_it_has_and_its_id(node: str) -> None:
    (queue,) = make_topic()
    message = NewMessage(
        body=b"\x00\xff",
        key="k",
        tag="t",
        headers={"h": "1"},
        trace_id="x",
        delay_ms=HOUR_MS,
    )
    ((receipt),) = publish(topic="orders", messages=[message], batch_id=None, actor=ACTOR)
    make_due(queue)
    assert mover(queue).run_once() == 1
    (moved,) = stored(queue)
    assert (moved.body, moved.key, moved.tag, moved.trace_id) == (
        b"\x00\xff",
        "k",
        "t",
        "x",
    )
    assert moved.headers == {"h": "1", "catmq-delayed-id": receipt.message_id}
    assert rows(queue) == []


def test_what_is_not_due_stays(node: str) -> None:
    (queue,) = make_topic()
    delay("orders", b"later")
    assert mover(queue).run_once() == 0
    assert (bodies(queue), len(rows(queue))) == ([], 1)


def test_messages_move_in_the_order_of_their_times_and_none_falls_back_in_time(
    node: str,
) -> None:
    (queue,) = make_topic()
    for body, due in ((b"c", 3), (b"a", 1), (b"b", 2)):
        message = NewMessage(body=body, delay_ms=due * 1000)
        publish(topic="orders", messages=[message], batch_id=None, actor=ACTOR)
    publish(topic="orders", messages=[NewMessage(body=b"now")], batch_id=None, actor=ACTOR)
    make_due(queue)
    mover(queue).run_once()
    found = stored(queue)
    assert [one.body for one in found] == [b"now", b"a", b"b", b"c"]
    assert [one.offset for one in found] == [0, 1, 2, 3]
    assert sorted(one.stored_at_ms for one in found) == [one.stored_at_ms for one in found]


def test_immediate_and_delayed_messages_of_a_batch_each_get_their_own(node: str) -> None:
    (queue,) = make_topic()
    messages = [
        NewMessage(body=b"now"),
        NewMessage(body=b"later", delay_ms=HOUR_MS),
        NewMessage(body=b"at", deliver_at_ms=_now(queue) + HOUR_MS),
    ]
    now, later, at = publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)
    assert isinstance(now, Receipt) and now.offset == 0
    assert isinstance(later, delayed_store.DelayedReceipt) and isinstance(
        at, delayed_store.DelayedReceipt
    )
    assert at.due_at_ms == messages[2].deliver_at_ms
    assert (bodies(queue), len(rows(queue))) == ([b"now"], 2)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"delay_ms": 1, "deliver_at_ms": 1}, "either delay_ms or deliver_at_ms"),
        ({"delay_ms": 400 * 86_400_000}, "a year"),
        ({"delay_ms": -1}, "between 1"),
        ({"deliver_at_ms": 1}, "passed .* ago"),
        ({"deliver_at_ms": 10**14}, "more than a year"),
    ],
)
def test_a_wrong_time_is_refused_by_name_and_nothing_is_stored(
    node: str, given: dict[str, int], why: str
) -> None:
    (queue,) = make_topic()
    messages = [NewMessage(body=b"fine"), NewMessage(body=b"wrong", **given)]
    with pytest.raises(Invalid, match=rf"messages\[1\].*{why}"):
        publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)
    assert (bodies(queue), rows(queue)) == ([], [])


def test_a_time_that_has_just_passed_is_now(node: str) -> None:
    (queue,) = make_topic()
    message = NewMessage(body=b"x", deliver_at_ms=_now(queue) - 60_000)
    publish(topic="orders", messages=[message], batch_id=None, actor=ACTOR)
    assert mover(queue).run_once() == 1


def _now(queue: int) -> int:
    with node_pools.node_of(queue).reading() as session:
        return node_sql.now_ms(session)


def test_a_backlog_of_several_queues_is_moved_in_one_pass(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("messagestore.produce.delayed_delivery.PASS_S", 60.0)
    # a slow look would end the pass
    monkeypatch.setattr("messagestore.produce.delayed_delivery.PACE", 0)
    mine = make_topic(queues=3)
    for start in range(0, 1200, 300):
        messages = [
            NewMessage(body=b"%d" % index, delay_ms=1000 + index, queue=mine[index % 3])
            for index in range(start, start + 300)
        ]
        publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)
    make_due(mine[0])
    assert mover(mine[0]).run_once() == 1200
    for place, queue in enumerate(mine):
        assert bodies(queue) == [b"%d" % index for index in range(place, 1200, 3)]


def test_two_movers_at_once_move_each_message_once(
    node: str, in_threads: Callable[..., list[Any]]
) -> None:
    mine = make_topic(queues=2)
    for queue in mine:
        delay("orders", *(b"%d-%d" % (queue, index) for index in range(300)), queue=queue)
    make_due(mine[0])
    movers = [mover(mine[0]) for _ in range(4)]
    in_threads([lambda one=one: [one.move() for _ in range(4)] for one in movers])
    for queue in mine:
        assert sorted(bodies(queue)) == sorted(
            b"%d-%d" % (queue, index) for index in range(300)
        )
    assert rows(mine[0]) == []


def test_a_closed_queue_gives_its_messages_to_an_open_one(node: str) -> None:
    mine = make_topic(queues=2)
    delay("orders", b"a", b"b", queue=mine[0])
    queues.set_state(topic="orders", queue=mine[0], state="read_only", actor=ACTOR)
    snapshot.refresh()
    make_due(mine[0])
    mover(mine[0]).run_once()
    assert (bodies(mine[0]), bodies(mine[1])) == ([], [b"a", b"b"])


@pytest.mark.parametrize("is_closed", [False, True], ids=["its own queue", "another queue"])
def test_after_a_failed_move_the_queue_rests(
    node: str, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    topic_queues = make_topic(queues=2)
    delay("orders", b"a", queue=topic_queues[0])
    if is_closed:
        queues.set_state(
            topic="orders", queue=topic_queues[0], state="read_only", actor=ACTOR
        )
        snapshot.refresh()
    make_due(topic_queues[0])
    tries = []

    def fail(*_: object, **__: object) -> dict[int, int]:
        tries.append(1)
        raise db_errors.RolledBack("Node main answered 1205: Lock wait timeout exceeded")

    moving = mover(topic_queues[0])
    with monkeypatch.context() as patched:
        patched.setattr(delivery_sql, "move_delayed", fail)
        for _ in range(5):
            moving.run_once()
    assert len(tries) == 2  # of all queues together, then of this one
    monkeypatch.setattr(delayed_delivery, "RETRY_S", 0.0)
    moving._paused_until.clear()
    until(lambda: moving.run_once() == 1)


def test_a_key_of_a_strict_topic_waits_for_its_queue(node: str) -> None:
    mine = make_topic(queues=2, keyed="strict")
    delay("orders", b"a", key="k")
    home = snapshot.find_topic("orders").layout[slot_of("k")]
    queues.set_state(topic="orders", queue=home, state="read_only", actor=ACTOR)
    snapshot.refresh()
    make_due(mine[0])
    mover(mine[0]).run_once()
    assert [bodies(queue) for queue in mine] == [[], []]
    queues.set_state(topic="orders", queue=home, state="read_write", actor=ACTOR)
    snapshot.refresh()
    mover(mine[0]).run_once()
    assert bodies(home) == [b"a"]


def test_a_key_goes_to_the_queue_it_belongs_to_when_it_is_due(node: str) -> None:
    make_topic()
    keys = [f"k{index}" for index in range(40)]
    for key in keys:
        delay("orders", key.encode(), key=key)
    queues.expand(topic="orders", queues=3, actor=ACTOR)
    snapshot.refresh()
    topic = snapshot.find_topic("orders")
    make_due(topic.queues[0])
    mover(topic.queues[0]).run_once()
    for key in keys:
        assert key.encode() in bodies(topic.layout[slot_of(key)])
    assert len(set(topic.layout)) == 4


def test_a_message_whose_queue_is_on_another_node_is_handed_over_once(
    make_node: Callable[..., str],
) -> None:
    first, second = make_node("a"), make_node("b")
    mine = make_topic(queues=2)
    by_node = {node_pools.node_of(queue).info.name: queue for queue in mine}
    here, there = by_node[first], by_node[second]
    (receipt,) = delay("orders", b"a", queue=here)
    queues.set_state(topic="orders", queue=here, state="read_only", actor=ACTOR)
    snapshot.refresh()
    make_due(here)
    handing = mover(here)
    assert [handing.move(), handing.move()] == [1, 1]  # a pass may pause between the two
    assert rows(here) == []
    mover(there).run_once()
    (moved,) = stored(there)
    assert moved.headers == {"catmq-delayed-id": receipt.message_id}
    with pytest.raises(Conflict, match="is in its queue"):
        delayed_admin.recall(message_id=receipt.message_id, actor=ACTOR)


def test_what_waits_for_a_retired_queue_gets_another_one(node: str) -> None:
    mine = make_topic(queues=2)
    delay("orders", b"a", b"b", queue=mine[0])
    delayed_reassignment.reassign(mine[0], topic_id=snapshot.find_topic("orders").id)
    assert rows(mine[0]) == [(mine[1], b"a"), (mine[1], b"b")]


def test_what_waits_goes_with_its_topic(node: str) -> None:
    make_topic()
    (other,) = make_topic("other")
    delay("orders", b"a")
    delay("other", b"b")
    topics.delete(name="orders", confirm="orders", actor=ACTOR)
    assert topics.drop_deleted(after_days=0) == 1
    assert rows(other) == [(other, b"b")]


def test_missing_partitions_are_made_and_the_messages_moved(node: str, engine: str) -> None:
    (queue,) = make_topic()
    if engine == "sqlite":
        pytest.skip("only MySQL and MariaDB have partitions")
    delay("orders", b"a")
    make_due(queue)
    plant(queue, "UPDATE queue_head SET head = 300000, low = 300000")
    mover(queue).run_once()
    mover(queue).run_once()
    with node_pools.node_of(queue).reading() as session:
        assert (
            message_sql.read_stored_at_ms(session, queue=queue, offset=300_000) is not None
        )
    assert partitions.extend(queue) > 300_000


def test_a_queue_whose_table_is_gone_holds_up_no_other(node: str) -> None:
    mine = make_topic(queues=2)
    for queue in mine:
        delay("orders", b"%d" % queue, queue=queue)
    make_due(mine[0])
    plant(mine[0], "DROP TABLE message_{q}")
    mover(mine[0]).run_once()
    assert bodies(mine[1]) == [b"%d" % mine[1]]
    assert rows(mine[0]) == [(mine[0], b"%d" % mine[0])]


def test_verify_takes_delayed_and_moved_messages_as_they_are(node: str) -> None:
    (queue,) = make_topic()
    delay("orders", b"a", b"b")
    publish(topic="orders", messages=[NewMessage(body=b"now")], batch_id=None, actor=ACTOR)
    make_due(queue)
    mover(queue).run_once()
    delay("orders", b"still waits")
    assert _findings() == []
    plant(queue, "DELETE FROM sent_batch WHERE queue_id = {q} AND first_offset = 2")
    assert "unclaimed" in _findings()


def _findings() -> list[str]:
    report = verify(topics=["orders"], actor=ACTOR, digests=True)
    return [finding.kind for queue in report.queues for finding in queue.findings]


def test_a_recalled_message_never_comes(node: str) -> None:
    (queue,) = make_topic()
    one, other = delay("orders", b"recalled", b"kept")
    delayed_admin.recall(message_id=one.message_id, actor=ACTOR)
    # whoever repeats it hears the same
    delayed_admin.recall(message_id=one.message_id, actor=ACTOR)
    make_due(queue)
    mover(queue).run_once()
    assert bodies(queue) == [b"kept"]
    with pytest.raises(Conflict, match=f"{other.message_id} is in its queue as {queue}-0"):
        delayed_admin.recall(message_id=other.message_id, actor=ACTOR)


@pytest.mark.parametrize("message_id", ["d999-1", "d{node}-999"])
def test_a_message_that_never_was_cannot_be_recalled(node: str, message_id: str) -> None:
    (queue,) = make_topic()
    with pytest.raises(NotFound):
        delayed_admin.recall(
            message_id=message_id.format(node=node_pools.node_of(queue).info.id),
            actor=ACTOR,
        )


def test_recalling_needs_the_right_to_send(node: str) -> None:
    (queue,) = make_topic()
    (receipt,) = delay("orders", b"a")
    reader = Actor(kind="key", name="reader", rights={"browse": ("orders",)})
    stranger = Actor(kind="key", name="stranger", rights={"produce": ("other*",)})
    for _ in range(2):
        with pytest.raises(Forbidden, match="produce on topic orders"):
            delayed_admin.recall(message_id=receipt.message_id, actor=reader)
        # who sees no such topic is not told that there is one
        with pytest.raises(NotFound):
            delayed_admin.recall(message_id=receipt.message_id, actor=stranger)
        make_due(queue)
        mover(queue).run_once()


def test_recalls_and_movers_at_once_share_the_messages(
    node: str, in_threads: Callable[..., list[Any]]
) -> None:
    (queue,) = make_topic()
    receipts = delay("orders", *(b"%d" % index for index in range(200)))
    make_due(queue)

    def recall_all() -> set[int]:
        recalled = set()
        for index, receipt in enumerate(receipts):
            try:
                delayed_admin.recall(message_id=receipt.message_id, actor=ACTOR)
                recalled.add(index)
            except CatmqError as error:
                assert error.code == "already_delivered", error
        return recalled

    recalled, _ = in_threads([recall_all, lambda: [mover(queue).move() for _ in range(3)]])
    mover(queue).run_once()
    assert {int(body) for body in bodies(queue)} == set(range(200)) - recalled


def test_a_topic_shows_what_waits_page_by_page(node: str) -> None:
    make_topic("other")
    delay("other", b"not mine")
    mine = make_topic(queues=3)
    sent = [
        delay("orders", b"%d" % index, queue=mine[index % 3])[0].message_id
        for index in range(7)
    ]
    page = delayed_admin.of_topic(topic="orders", limit=4, actor=ACTOR)
    rest = delayed_admin.of_topic(topic="orders", limit=4, after=page.next, actor=ACTOR)
    assert [one.message_id for one in (*page.messages, *rest.messages)] == sent
    assert (page.count, page.next, rest.next) == (7, sent[3], None)


def test_a_topic_shows_what_waits_without_the_node_that_is_away_and_names_it(
    make_node: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, home in (("h", "n1"), ("t", "n2")):
        topics.create(name=name, queues=1, node=make_node(home), actor=ACTOR)
    (waits,), _ = delay("h", b"a"), delay("t", b"b")
    node_rows.update(name="n2", settings={"state": "offline"}, actor=ACTOR)
    snapshot.refresh()
    page = delayed_admin.of_topic(topic="h", actor=ACTOR)
    assert ([one.message_id for one in page.messages], page.count, page.away) == (
        [waits.message_id],
        1,
        (),
    )
    page = delayed_admin.of_topic(topic="t", actor=ACTOR)
    assert (page.messages, page.next, page.count, page.away) == ((), None, 0, ("n2",))
    monkeypatch.setattr(session_pool, "connect", unreachable)
    node_pools.evict_all()
    with pytest.raises(NodeUnavailable, match="n1, n2"):
        delayed_admin.of_topic(topic="t", actor=ACTOR)


def unreachable(*_: object, **__: object) -> None:
    raise NodeUnavailable("gone")


def test_a_lease_lets_one_process_move(node: str) -> None:
    (queue,) = make_topic()
    first, second = (
        delayed_delivery.DelayedDelivery(node_pools.node_of(queue).info.id, holder=name)
        for name in "ab"
    )
    delay("orders", b"a")
    make_due(queue)
    assert first.run_once() == 1
    delay("orders", b"b")
    make_due(queue)
    assert second.run_once() == 0
    first.finish()
    assert (
        delayed_delivery.DelayedDelivery(
            node_pools.node_of(queue).info.id, holder="b"
        ).run_once()
        == 1
    )


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When tables of delayed messages were looked at."""
    at: list[float] = []
    look_at = delayed_sql.read_delayed_queues

    def noted(session: Any) -> dict[int, int]:
        at.append(time.monotonic())
        return look_at(session)

    monkeypatch.setattr(delayed_sql, "read_delayed_queues", noted)
    return at


def alone(queue: int) -> DelayedDelivery:
    """What moves the due messages of a queue's node where no other broker lives."""
    return DelayedDelivery(
        node_pools.node_of(queue).info.id, holder="test", is_alone=lambda: True
    )


def test_a_broker_that_is_alone_looks_once_a_second_while_no_worker_of_it_stores(
    node: str, looks: list[float]
) -> None:
    (queue,) = make_topic()
    moving = alone(queue)
    until(lambda: moving.run_once() or len(looks) == 3)
    assert 0.9 < looks[2] - looks[1] < 1.5
    delay("orders", b"a")
    make_due(queue)
    begun = time.monotonic()
    until(lambda: moving.run_once() == 1)
    assert time.monotonic() - begun < 0.5, "a worker stored it, so it is not late"


def test_a_broker_that_is_alone_moves_a_message_in_time(node: str) -> None:
    (queue,) = make_topic()
    publish(
        topic="orders",
        messages=[NewMessage(body=b"a", delay_ms=700)],
        batch_id=None,
        actor=ACTOR,
    )
    begun = time.monotonic()
    moving = alone(queue)
    until(lambda: moving.run_once() == 1)
    assert 0.6 < time.monotonic() - begun < 0.95, "due after 0.7 s, and at most 0.25 s late"


def test_who_does_not_move_asks_for_the_lease_once_a_second(
    node: str, looks: list[float]
) -> None:
    (queue,) = make_topic()
    first, second = (
        mover(queue),
        DelayedDelivery(node_pools.node_of(queue).info.id, holder="other"),
    )
    first.run_once(), second.run_once()
    first.finish()
    begun, count = time.monotonic(), len(looks)
    until(lambda: second.run_once() or len(looks) > count)
    assert time.monotonic() - begun < delayed_delivery.LEASE_EVERY_S + 0.5


def test_an_offline_node_is_left_out(node: str) -> None:
    (queue,) = make_topic()
    assert delayed_delivery.nodes() == [node_pools.node_of(queue).info.id]
    node_rows.update(name=node, settings={"state": "offline"}, actor=ACTOR)
    snapshot.refresh()
    assert delayed_delivery.nodes() == []


def test_moved_messages_wake_who_waits(node: str) -> None:
    from messagestore.heads.heads import board

    (queue,) = make_topic()
    delay("orders", b"a")
    make_due(queue)
    with board.watch(1, {queue: 0}) as waiter:
        mover(queue).run_once()
        assert waiter.wait(0)
    assert look(queue, "SELECT head FROM queue_head WHERE queue_id = {q}") == [(1,)]
