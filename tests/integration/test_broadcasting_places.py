"""Where the instances of a broadcasting group stand: made in time, however joins and
subscriptions cross.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from messagestore.consume import positions
from messagestore.pool import node_pools
from messagestore.tables import reader_sql
from messagestore.topology import reader_rows, subscriptions, topics
from metadata.cache import snapshot
from metadata.nodes import node_rows
from tests.support import tampering
from tests.support.instances import ME, Instance, bodies, committed, news, send


@pytest.fixture
def queues(node: str) -> list[int]:
    """The queues of the broadcasting group `news`."""
    return news()


def test_a_topic_subscribed_to_later_begins_for_every_instance_at_that_moment(
    queues: list[int],
) -> None:
    (late,) = (
        one.queue.queue for one in topics.create(name="late", queues=1, actor=ME).queues
    )
    here, away = Instance("here").join(), Instance("away").join()
    away.leave()
    send(late, 2, topic="late")

    subscriptions.create(group="news", topic="late", start="latest", actor=ME)
    send(late, 3, topic="late")

    assert here.take()[late] == ("ok", 2)
    assert away.join().take()[late] == ("ok", 2)
    assert bodies(here, late, 2) == [b"m0", b"m1", b"m2"]


def test_who_joins_while_a_topic_is_subscribed_to_has_a_place_at_its_first_acquire(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It joins after the instances were listed, and before the subscription is ready."""
    (late,) = (
        one.queue.queue for one in topics.create(name="late", queues=1, actor=ME).queues
    )
    send(late, 2, topic="late")
    one = Instance("one")
    insert = reader_rows.insert

    def insert_and_let_join(*args: Any, **kwargs: Any) -> None:
        insert(*args, **kwargs)
        one.join()

    monkeypatch.setattr(reader_rows, "insert", insert_and_let_join)
    subscriptions.create(group="news", topic="late", start="latest", actor=ME)
    assert committed(late) == {}

    assert one.take()[late] == ("ok", 2)


def test_an_acquire_that_crosses_an_unsubscribe_leaves_no_place_behind(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Instance("one").join()
    one.beat()
    for queue in queues:
        _forget_places(queue)
    insert = reader_sql.insert_readers

    def end_the_subscription_first(*args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(reader_sql, "insert_readers", insert)
        subscriptions.delete(group="news", topic="orders", actor=ME)
        insert(*args, **kwargs)

    monkeypatch.setattr(reader_sql, "insert_readers", end_the_subscription_first)
    owned, one.owned = dict(one.owned), {}
    _acquire(one, owned)

    assert [tampering.readers(queue) for queue in queues] == [[], []]


def test_a_place_that_an_earlier_subscription_left_does_not_count(
    queues: list[int],
) -> None:
    send(queues[0], 5)
    one = Instance("one").join()
    one.take()
    one.commit(queues[0], 4)
    ((group_id, instance, epoch, _, _),) = tampering.readers(queues[0])
    subscriptions.delete(group="news", topic="orders", actor=ME)
    _leave_behind(queues[0], group_id, instance, epoch)

    subscriptions.create(group="news", topic="orders", start="latest", actor=ME)

    assert committed(queues[0]) == {"one": 5}
    assert one.take()[queues[0]] == ("ok", 5)


def test_unsubscribing_forgets_the_places_of_all_instances_and_fences_them(
    queues: list[int],
) -> None:
    one, two = Instance("one").join(), Instance("two").join()
    one.take(), two.take()
    two.leave()

    subscriptions.delete(group="news", topic="orders", actor=ME)
    snapshot.refresh()

    assert [tampering.readers(queue) for queue in queues] == [[], []]
    assert one.pull(queues[0]).state == "fenced"
    told = one.beat()
    assert (told.assigned, sorted(told.revoked)) == ((), sorted(queues))
    assert one.beat().revoked == ()


def test_no_epoch_is_repeated_after_unsubscribing_and_subscribing_again(
    queues: list[int],
) -> None:
    one = Instance("one").join()
    one.take()
    earlier = dict(one.owned)

    subscriptions.delete(group="news", topic="orders", actor=ME)
    subscriptions.create(group="news", topic="orders", start="earliest", actor=ME)

    assert set(one.take().values()) == {("ok", 0)}
    assert all(one.owned[queue] > earlier[queue] for queue in queues)


def test_an_instance_joins_while_a_node_is_away_and_gets_its_places_when_it_is_back(
    queues: list[int], make_node: Callable[..., str]
) -> None:
    make_node("other")
    state = topics.create(name="elsewhere", queues=1, node="other", actor=ME)
    subscriptions.create(group="news", topic="elsewhere", start="earliest", actor=ME)
    away = state.queues[0].queue.queue
    node_rows.update(name="other", settings={"state": "offline"}, actor=ME)
    snapshot.refresh()

    one = Instance("one").join()
    assert one.take() == {
        queues[0]: ("ok", 0),
        queues[1]: ("ok", 0),
        away: ("unavailable", None),
    }
    node_rows.update(name="other", settings={"state": "read_write"}, actor=ME)
    snapshot.refresh()

    assert one.take()[away] == ("ok", 0)


def test_instances_that_come_and_go_while_topics_do_end_with_exactly_their_places(
    queues: list[int], in_threads: Callable[..., list[Any]]
) -> None:
    topics.create(name="late", queues=1, actor=ME)
    snapshot.refresh()
    over = threading.Event()
    names = ["one", "two", "three"]

    def life(name: str) -> None:
        while not over.is_set():
            instance = Instance(name).join()
            instance.take()
            instance.leave()

    def subscribe_and_unsubscribe() -> None:
        try:
            for _ in range(2):
                subscriptions.create(group="news", topic="late", start="earliest", actor=ME)
                subscriptions.delete(group="news", topic="late", actor=ME)
            subscriptions.create(group="news", topic="late", start="earliest", actor=ME)
        finally:
            over.set()

    in_threads(
        [subscribe_and_unsubscribe, *(lambda name=name: life(name) for name in names)]
    )

    for name in names:
        assert set(Instance(name).join().take().values()) == {("ok", 0)}
    for queue in (*queues, *_queues_of("late")):
        assert committed(queue) == dict.fromkeys(names, 0)


def _queues_of(topic: str) -> list[int]:
    return [one.queue.queue for one in topics.describe(name=topic, actor=ME).queues]


def _acquire(instance: Instance, owned: dict[int, int]) -> None:
    positions.acquire(
        consumer=instance.id, queues=[positions.Claim(*one) for one in owned.items()]
    )


def _forget_places(queue: int) -> None:
    ((group_id, _, epoch, _, _),) = tampering.readers(queue)
    with node_pools.node_of(queue).writing() as session:
        reader_sql.delete_readers(
            session, group_id=group_id, queues=[queue], below=epoch + 1
        )


def _leave_behind(queue: int, group_id: int, instance: str, epoch: int) -> None:
    """What an acquire leaves that was frozen since before the subscription ended."""
    with node_pools.node_of(queue).writing() as session:
        whose = {"group_id": group_id, "queues": [queue], "instances": [instance]}
        reader_sql.insert_readers(session, epoch=epoch, latest=False, **whose)  # type: ignore[arg-type]
