"""Queues that drain: retired once every group has read them to the end, dropped three days
later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from catmq_site.background.table import JOBS
from messagestore.consume import offset_reset, positions
from messagestore.consume.offset_reset import Target
from messagestore.consume.positions import Claim, CommitOffset
from messagestore.engine.messages import NewMessage
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.tables import message_sql, queue_sql, reader_sql
from messagestore.topology import drains, queue_states, queues, subscriptions, topics
from metadata.actors import Actor, command
from metadata.cache import snapshot
from metadata.errors import Code, Conflict, Invalid, NodeUnavailable, NotFound
from metadata.groups import groups, layout
from metadata.membership import rebalance
from metadata.models import AuditLog, Queue, QueueOffset
from tests.support import tampering
from tests.support.instances import Instance
from tests.support.rows import Member, long_ago

ME = command("test")
NOW = -1.0  # as a time of rest: none


@pytest.fixture
def orders(node: str) -> list[int]:
    """The ids of the two queues of topic `orders`; groups `billing` and, broadcasting,
    `news` read it.
    """
    made = topics.create(name="orders", queues=2, actor=ME)
    for group, mode in (("billing", "clustering"), ("news", "broadcasting")):
        groups.create(name=group, mode=mode, actor=ME)
        subscriptions.create(group=group, topic="orders", start="earliest", actor=ME)
    snapshot.refresh()
    return [one.queue.queue for one in made.queues]


def send(queue: int, count: int) -> None:
    messages = [NewMessage(body=b"m", queue=queue) for _ in range(count)]
    publish(topic="orders", messages=messages, batch_id=None, actor=ME)


def drain(queue: int) -> None:
    queues.shrink(topic="orders", queues=[queue], actor=ME)
    snapshot.refresh()


def read(queue: int, offset: int) -> Member:
    """A member of `billing` that has committed an offset of the queue."""
    member = Member("reader").register()
    assert member.id is not None
    rebalance.rebalance(member.id.group_id)
    member.beat()
    positions.acquire(
        consumer=member.id, queues=[Claim(*one) for one in member.owned.items()]
    )
    asked = [CommitOffset(queue, member.owned[queue], offset)]
    assert [one.state for one in positions.commit(consumer=member.id, offsets=asked)] == [
        "ok"
    ]
    return member


def skip(group: str, to: str = "latest", **more: Any) -> None:
    """Moves a group to the end by hand."""
    groups.update(name=group, settings={"stopped": True}, actor=ME)
    offset_reset.reset(group=group, topic="orders", target=Target(to), actor=ME, **more)


def states() -> dict[int, str]:
    return dict(Queue.objects.values_list("pk", "state"))


def head_of(queue: int) -> str:
    with node_pools.node_of(queue).reading() as session:
        head = queue_sql.read_head(session, queue=queue)
    return head.state if head else ""


def unread(queue: int, actor: Actor = ME) -> dict[str, int | None]:
    (found,) = drains.describe(topic="orders", queue=queue, actor=actor)
    return {one.group: one.messages for one in found.unread}


def test_a_drained_queue_is_retired_when_the_last_group_has_read_it(
    orders: list[int],
) -> None:
    first, _ = orders
    send(first, 3)
    slow = Instance("slow").join()
    slow.take()
    drain(first)
    assert unread(first) == {"billing": 3, "news": 3}

    read(first, 3)
    assert (unread(first), drains.retire_drained(rest_s=NOW)) == (
        {"billing": 0, "news": 3},
        0,
    )
    slow.commit(first, 2)
    assert (unread(first), drains.retire_drained(rest_s=NOW)) == (
        {"billing": 0, "news": 1},
        0,
    )
    slow.commit(first, 3)
    assert drains.retire_drained(rest_s=NOW) == 1

    assert (states()[first], head_of(first)) == ("retired", "retired")
    assert not QueueOffset.objects.filter(queue=first).exists()
    assert tampering.readers(first) == []
    assert unread(first) == {}
    row = AuditLog.objects.filter(verb="retire").get()
    assert (row.actor_name, row.name) == ("queues", f"orders/{first}")


def test_members_lose_a_retired_queue_and_keep_the_others(orders: list[int]) -> None:
    first, second = orders
    member = read(first, 0)
    drain(first)
    generation = member.generation
    assert drains.retire_drained(rest_s=NOW) == 1
    snapshot.refresh()

    told = member.beat()

    assert [one.queue for one in told.assigned] == [second]
    assert told.revoked == (first,)
    assert told.generation > generation


@pytest.mark.one_engine
def test_a_queue_rests_before_it_is_retired(orders: list[int]) -> None:
    drain(orders[0])
    assert JOBS["retire_queues"].run() == 0
    Queue.objects.filter(pk=orders[0]).update(
        state_since=long_ago(seconds=drains.REST_S + 5)
    )
    assert JOBS["retire_queues"].run() == 1
    assert JOBS["retire_queues"].run() == 0


@pytest.mark.one_engine
def test_a_queue_that_is_only_closed_by_hand_is_never_retired(orders: list[int]) -> None:
    queues.set_state(topic="orders", queue=orders[0], state="read_only", actor=ME)
    assert drains.retire_drained(rest_s=NOW) == 0


def test_what_retention_took_is_not_unread(orders: list[int]) -> None:
    send(orders[0], 3)
    tampering.raise_low(orders[0], 3)
    drain(orders[0])
    assert unread(orders[0])["billing"] == 0


def test_a_group_that_skips_the_rest_lets_the_queue_go(orders: list[int]) -> None:
    send(orders[0], 3)
    drain(orders[0])
    skip("billing")
    assert drains.retire_drained(rest_s=NOW) == 1


@pytest.mark.one_engine
def test_a_group_that_is_subscribing_is_waited_for(
    orders: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    drain(orders[0])
    groups.create(name="late", actor=ME)
    monkeypatch.setattr(reader_sql, "insert_readers", lambda *given, **more: None)
    subscriptions.create(group="late", topic="orders", start="earliest", actor=ME)
    assert (unread(orders[0])["late"], drains.retire_drained(rest_s=NOW)) == (None, 0)


@pytest.mark.parametrize("crossing", ["subscribes", "rewinds", "opens"])
def test_who_still_wants_a_queue_while_it_is_being_retired_keeps_it(
    orders: list[int], monkeypatch: pytest.MonkeyPatch, crossing: str
) -> None:
    first, _ = orders
    send(first, 3)
    skip("billing")
    drain(first)
    real = queue_states.set_heads

    def meanwhile(which: Any, *, state: str) -> None:
        """Between the first look and the second."""
        real(which, state=state)
        if state == "retired" and crossing == "rewinds":
            offset_reset.reset(
                group="billing", topic="orders", target=Target("earliest"), actor=ME
            )

    def too_late(**given: Any) -> bool:
        """Between the second look and the end."""
        if crossing == "subscribes":
            groups.create(name="late", actor=ME)
            subscriptions.create(group="late", topic="orders", start="earliest", actor=ME)
        elif crossing == "opens":
            layout.set_state(topic="orders", queue=first, state="read_write", actor=ME)
        return retire(**given)

    retire = layout.retire
    monkeypatch.setattr(queue_states, "set_heads", meanwhile)
    monkeypatch.setattr(layout, "retire", too_late)

    assert drains.retire_drained(rest_s=NOW) == 0

    opened = crossing == "opens"
    assert (states()[first], head_of(first)) == (
        ("read_write", "rw") if opened else ("read_only", "ro")
    )
    assert len(tampering.readers(first)) == (2 if crossing == "subscribes" else 1)


def test_a_node_that_is_away_keeps_its_queues_for_later(
    orders: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    drain(orders[0])

    def away(*args: object, **kwargs: object) -> Any:
        raise NodeUnavailable("away")

    with monkeypatch.context() as failing:
        failing.setattr(queue_sql, "set_queue_state", away)
        assert drains.retire_drained(rest_s=NOW) == 0
    with monkeypatch.context() as failing:
        failing.setattr(reader_sql, "read_positions", away)
        assert drains.retire_drained(rest_s=NOW) == 0
    assert drains.retire_drained(rest_s=NOW) == 1


def test_the_table_of_a_retired_queue_is_dropped_after_three_days(
    orders: list[int],
) -> None:
    first, second = orders
    drain(first)
    drains.retire_drained(rest_s=NOW)
    snapshot.refresh()
    assert JOBS["drop_tables"].run() == 0
    Queue.objects.filter(pk=first).update(state_since=long_ago(seconds=3 * 86_400 + 5))
    node = node_pools.node_of(first)

    assert JOBS["drop_tables"].run() == 1

    snapshot.refresh()
    assert list(states()) == [second]
    with node.reading() as session:
        assert queue_sql.read_head(session, queue=first) is None
        with pytest.raises(Exception, match=f"message_{first}"):
            message_sql.select_messages(session, queue=first, first=0, end=1, most_bytes=1)
    assert JOBS["drop_tables"].run() == 0
    assert [
        one.number for one in queues.expand(topic="orders", queues=1, actor=ME).queues
    ] == [2]


@pytest.mark.one_engine
def test_a_retired_queue_can_neither_be_opened_nor_drained_again(orders: list[int]) -> None:
    drain(orders[0])
    drains.retire_drained(rest_s=NOW)
    with pytest.raises(Conflict) as refused:
        queues.set_state(topic="orders", queue=orders[0], state="read_write", actor=ME)
    assert refused.value.code is Code.IN_USE
    with pytest.raises(Invalid, match="retired"):
        queues.shrink(topic="orders", queues=[orders[0]], actor=ME)


def test_a_topic_with_a_retired_queue_can_be_deleted(orders: list[int]) -> None:
    drain(orders[0])
    drains.retire_drained(rest_s=NOW)
    for group in ("billing", "news"):
        subscriptions.delete(group=group, topic="orders", actor=ME)
    topics.delete(name="orders", confirm="orders", actor=ME)
    assert topics.drop_deleted(NOW) == 1
    assert not Queue.objects.exists()


@pytest.mark.one_engine
def test_who_may_not_manage_a_topic_hears_only_of_groups_of_its_own(
    orders: list[int],
) -> None:
    own = Actor(
        kind="key", name="k", rights={"consume": ("billing",), "produce": ("orders",)}
    )
    manager = Actor(kind="key", name="m", rights={"manage": ("orders",)})
    assert unread(orders[0], own) == {"billing": 0}
    assert unread(orders[0], manager) == {"billing": 0, "news": 0}
    with pytest.raises(NotFound) as refused:
        drains.describe(topic="orders", queue=999_999, actor=ME)
    assert refused.value.code is Code.QUEUE_NOT_FOUND


@pytest.mark.one_engine
def test_bounds_and_backlog_on_a_node_that_is_away_are_not_known(
    orders: list[int], monkeypatch: pytest.MonkeyPatch, make_node: Callable[..., str]
) -> None:
    def away(*args: object, **kwargs: object) -> Any:
        raise NodeUnavailable("away")

    monkeypatch.setattr(reader_sql, "read_positions", away)
    first = drains.describe(topic="orders", actor=ME)[0]
    assert (first.low, first.head, first.slots) == (None, None, 512)
    assert [(one.group, one.messages) for one in first.unread] == [
        ("billing", None),
        ("news", None),
    ]
