"""Broadcasting groups: every instance reads every queue, at positions of its own."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.models import F

from messagestore.pool import node_pools
from messagestore.tables import reader_sql
from messagestore.tables.shapes import ReaderKey
from messagestore.topology import membership
from metadata.cache import snapshot
from metadata.db.consumer_ids import check
from metadata.errors import Code, Conflict, Gone, Invalid
from metadata.groups import groups, ownership
from metadata.membership import broadcast_instances, expiry, rebalance
from metadata.models import BroadcastInstance, ConsumerGroup, QueueOffset, Rebalance
from tests.support import rows
from tests.support.instances import ME, Instance, bodies, committed, news, send


@pytest.fixture
def queues(node: str) -> list[int]:
    """The queues of the broadcasting group `news`."""
    return news()


def test_every_instance_reads_everything_at_a_place_of_its_own(queues: list[int]) -> None:
    send(queues[0], 3)
    one, two = Instance("one").join(), Instance("two").join()

    assert one.take() == two.take() == dict.fromkeys(queues, ("ok", 0))
    assert bodies(one, queues[0]) == bodies(two, queues[0]) == [b"m0", b"m1", b"m2"]
    assert one.commit(queues[0], 3) == "ok"

    assert committed(queues[0]) == {"one": 3, "two": 0}
    assert bodies(two, queues[0]) == [b"m0", b"m1", b"m2"]
    assert set(QueueOffset.objects.values_list("owner", "target")) == {(None, None)}


def test_a_place_outlives_the_membership(queues: list[int]) -> None:
    send(queues[0], 3)
    first = Instance("one").join()
    first.take()
    first.commit(queues[0], 2)
    first.leave()

    second = Instance("one").join()

    assert second.take()[queues[0]] == ("ok", 2)
    assert second.owned[queues[0]] > first.owned[queues[0]]
    assert first.pull(queues[0]).state == "fenced"
    assert first.commit(queues[0], 3) == "fenced"


def test_of_two_live_holders_of_an_instance_the_second_fences_the_first(
    queues: list[int],
) -> None:
    first = Instance("one").join()
    first.take()
    second = Instance("one").join()

    with pytest.raises(Gone) as caught:
        first.beat()
    assert caught.value.code == Code.REPLACED
    assert broadcast_instances.read_epochs([first.id.text]) == {}
    assert set(second.take().values()) == {("ok", 0)}
    assert first.pull(queues[0]).state == "fenced"
    assert first.commit(queues[0], 0) == "fenced"
    assert second.commit(queues[0], 0) == "ok"
    with pytest.raises(Gone) as caught:
        first.join()
    assert caught.value.code == Code.REPLACED


def test_a_late_leave_of_a_replaced_process_does_not_remove_its_successor(
    queues: list[int],
) -> None:
    first = Instance("one").join()
    second = Instance("one").join()

    first.leave()

    assert len(second.beat().assigned) == 2


def test_the_same_process_registering_again_goes_on(queues: list[int]) -> None:
    one = Instance("one").join()
    one.take()
    before = one.id

    one.join()

    assert one.id == before
    assert one.pull(queues[0]).state == "ok"


def test_who_comes_and_goes_concerns_nobody_else(queues: list[int]) -> None:
    one = Instance("one").join()
    one.take()
    rebalance.rebalance(one.id.group_id)  # for the subscription
    before = ConsumerGroup.objects.values_list("generation", "rebalance_wanted").get()

    two = Instance("two").join()
    two.take()
    Instance("two").join()
    silent = Instance("three").join()
    rows.silence(silent, seconds=100)
    assert expiry.expire_silent_members(guard=rows.steady_guard()) == 1

    assert (
        ConsumerGroup.objects.values_list("generation", "rebalance_wanted").get() == before
    )
    assert Rebalance.objects.count() == 1
    assert one.pull(queues[0]).state == "ok"


def test_an_instance_was_last_seen_when_it_left_or_was_last_heard(
    queues: list[int],
) -> None:
    def last_seen(name: str) -> Any:
        return BroadcastInstance.objects.get(name=name).last_seen

    one = Instance("one").join()
    came = last_seen("one")
    one.beat()
    assert last_seen("one") == came
    BroadcastInstance.objects.update(last_seen=rows.long_ago(seconds=1000))
    one.leave()
    assert last_seen("one") >= came
    silent = Instance("two").join()
    rows.silence(silent, seconds=100)
    expiry.expire_silent_members(guard=rows.steady_guard())
    assert 90 < (last_seen("one") - last_seen("two")).total_seconds() < 110


def test_an_instance_needs_a_name(queues: list[int]) -> None:
    with pytest.raises(Invalid) as caught:
        rows.Member("c1", group="news").register()
    assert caught.value.errors[0].field == "instance_id"


def test_the_id_of_a_consumer_names_its_instance_only_where_there_is_one(
    queues: list[int],
) -> None:
    groups.create(name="billing", actor=ME)
    shared = rows.Member("c1", instance_id="static").register()

    assert Instance("one").join().id.instance_id == BroadcastInstance.objects.get().pk
    assert shared.id is not None and shared.id.instance == ""


def test_a_reset_that_died_before_metadata_heard_of_it_heals_for_that_instance_alone(
    queues: list[int],
) -> None:
    send(queues[0], 3)
    one, two = Instance("one").join(), Instance("two").join()
    one.take(), two.take()
    others = dict(two.owned)
    with node_pools.node_of(queues[0]).writing() as session:
        reader = ReaderKey(one.id.group_id, queues[0], one.id.instance)
        for _ in range(3):
            reader_sql.reset_reader(session, reader=reader, offset=1)

    assert one.pull(queues[0]).state == "fenced"
    assert one.take()[queues[0]] == ("fenced", None)
    assert one.take() == {queues[0]: ("ok", 1), queues[1]: ("ok", 0)}
    two.beat()
    assert two.owned == others


def test_an_epoch_beyond_the_subscription_is_not_adopted(queues: list[int]) -> None:
    one = Instance("one").join()
    one.take()
    held = one.owned[queues[0]]
    other_subscription = held + 2_000_000_000

    known = ownership.adopt_node_epoch(
        group_id=one.id.group_id,
        queue=queues[0],
        epoch=other_subscription,
        instance_id=one.id.instance_id,
    )

    assert known == held
    one.beat()
    assert one.owned[queues[0]] == held


def test_an_instance_does_not_fall_to_an_epoch_that_was_voided_meanwhile(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Instance("one").join()
    one.take()
    held = one.owned[queues[0]]
    rows = BroadcastInstance.objects.filter(pk=one.id.instance_id)
    before = rows.get().epoch

    class Overtaken(int):
        def __gt__(self, other: int) -> bool:
            # as heartbeats do of a member that stands by, without a lock
            rows.update(epoch=F("epoch") + 5)
            return super().__gt__(other)

    monkeypatch.setattr(ownership, "EPOCHS_EACH", Overtaken(ownership.EPOCHS_EACH))
    known = ownership.adopt_node_epoch(
        group_id=one.id.group_id,
        queue=queues[0],
        epoch=held + 1,
        instance_id=one.id.instance_id,
    )
    assert (rows.get().epoch, known) == (before + 5, held + 5)


def test_a_stopped_topic_or_queue_is_told_to_every_instance(queues: list[int]) -> None:
    from metadata.groups import subscription_rows

    one, two = Instance("one").join(), Instance("two").join()
    one.take(), two.take()

    change = {"stopped_queues": [queues[1]]}
    subscription_rows.update(group="news", topic="orders", settings=change, actor=ME)
    snapshot.refresh()

    for instance in (one, two):
        assert {each.queue: each.stopped for each in instance.beat().assigned} == {
            queues[0]: False,
            queues[1]: True,
        }
        assert [instance.pull(queue).state for queue in queues] == ["ok", "stopped"]


def test_a_registration_makes_the_group_as_it_asks(queues: list[int]) -> None:
    joined = membership.join(
        group="fresh",
        topics=["orders"],
        name="c1",
        incarnation="6f0a2a0e-8a4d-4b43-8d5c-000000000001",
        instance_id="one",
        mode="broadcasting",
        session_timeout_ms=6_000,
        actor=ME,
    )

    assert joined.created == ("group:fresh", "subscription:fresh/orders")
    assert (joined.session_timeout_ms, joined.heartbeat_interval_ms) == (6_000, 2_000)
    assert check(joined.consumer_id).instance_id > 0
    assert groups.describe(name="fresh", actor=ME).mode == "broadcasting"


def test_of_two_registrations_that_make_the_group_differently_one_is_refused(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one made it after this one found none."""
    create = groups.create

    def quicker(**asked: Any) -> Any:
        create(name="fresh", mode="clustering", actor=ME)
        return create(**asked)

    monkeypatch.setattr(groups, "create", quicker)
    with pytest.raises(Conflict) as caught:
        membership.join(
            group="fresh",
            topics=["orders"],
            name="c1",
            incarnation="6f0a2a0e-8a4d-4b43-8d5c-000000000001",
            instance_id="one",
            mode="broadcasting",
            actor=ME,
        )

    assert caught.value.code == Code.GROUP_SETTINGS_DIFFER
    assert not groups.describe(name="fresh", actor=ME).subscriptions
