"""Static members, those with an instance_id: a restart within the session timeout moves
nothing.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db.models import F

from messagestore.consume import positions, pull
from messagestore.consume.positions import Claim, CommitOffset
from messagestore.consume.pull_types import PullQueue
from messagestore.topology import membership, subscriptions, topics
from metadata.cache import snapshot
from metadata.db import consumer_ids
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import Code, Gone
from metadata.groups import groups
from metadata.membership import consumers, expiry, rebalance
from metadata.models import ConsumerGroup, ConsumerGroupConsumer, QueueOffset, Rebalance
from tests.support import rows
from tests.support.databases import in_threads
from tests.support.rows import ME, Member

pytestmark = pytest.mark.usefixtures("metadata_db")


def settle(members: list[Member]) -> None:
    """Heartbeats until everybody holds what it shall."""
    for _ in range(4):
        # one after the other they would wait for each other
        in_threads([member.beat for member in members])
    assert not QueueOffset.objects.exclude(owner=F("target")).exists()


def standing() -> Any:
    """What a rebalance would change: generation, history, who shall own what."""
    return (
        rows.generation(),
        Rebalance.objects.count(),
        list(
            QueueOffset.objects.order_by("queue_id").values_list(
                "queue_id", "owner_id", "target_id"
            )
        ),
    )


def test_a_static_member_comes_back_under_another_name_without_a_rebalance() -> None:
    rows.world()
    other, old = Member("other").register(), Member("pod-1", instance_id="one").register()
    settle([other, old])
    before, mine = standing(), set(old.owned)

    new = Member("pod-2", instance_id="one").register()
    new.beat()

    assert standing() == before
    assert set(new.owned) == mine
    assert all(new.owned[queue] == old.owned[queue] + 1 for queue in mine)
    assert other.beat().revoked == ()
    assert rebalance.pending_groups() == []


def test_a_rolling_restart_of_ten_static_members_moves_nothing() -> None:
    rows.world(queues=24)
    members = [
        Member(f"pod-{number}", instance_id=f"i{number}").register() for number in range(10)
    ]
    settle(members)
    before = standing()
    shares = [set(member.owned) for member in members]

    for number in range(10):
        rows.silence(members[number], seconds=10)  # of fifteen
        assert expiry.expire_silent_members(guard=rows.steady_guard()) == 0
        members[number] = Member(f"pod-{number}-again", instance_id=f"i{number}").register()
        assert members[number].beat().revoked == ()

    assert not any(told.revoked for told in in_threads([member.beat for member in members]))
    assert standing() == before
    assert [set(member.owned) for member in members] == shares


def test_a_static_member_that_comes_back_while_it_is_being_expired_stays() -> None:
    rows.world(session_timeout_ms=2_000)
    old = Member("pod-1", instance_id="one").register()
    old.beat()
    before = standing()
    rows.silence(old, seconds=10)
    watch = rows.steady_guard().look()
    ((member, group_id),) = expiry._find_silent_members(watch)

    new = Member("pod-1", instance_id="one").register()

    assert expiry._expire_in_group(group_id=group_id, members=[member]) == 0
    assert standing() == before
    assert len(new.beat().assigned) == 4


def test_a_late_leave_of_a_replaced_process_does_not_remove_its_successor() -> None:
    rows.world()
    old = Member("pod-1", instance_id="one").register()
    old.beat()
    new = Member("pod-1", instance_id="one").register()
    before = standing()

    old.leave()

    assert standing() == before
    assert len(new.beat().assigned) == 4
    new.leave()
    assert not ConsumerGroupConsumer.objects.exists()


def test_a_static_member_that_comes_back_at_a_denied_address_gives_its_queues_up() -> None:
    rows.world()
    old, other = Member("pod-1", instance_id="one").register(), Member("other").register()
    settle([old, other])
    groups.update(name="billing", settings={"deny_addresses": "10.0.0.0/8"}, actor=rows.ME)
    rebalance.rebalance(ConsumerGroup.objects.get().pk)
    assert len(old.beat().assigned) == 2

    new = Member("pod-2", instance_id="one", address="10.1.2.3").register()
    settle([new, other])

    assert (len(new.owned), len(other.owned)) == (0, 4)


@pytest.fixture
def queue(node: str) -> int:
    """The only queue of a topic that group `billing` reads."""
    state = topics.create(name="orders", queues=1, actor=ME)
    groups.create(name="billing", actor=ME)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ME)
    snapshot.refresh()
    return state.queues[0].queue.queue


def join() -> ConsumerId:
    joined = membership.join(
        group="billing",
        name="pod",
        incarnation=str(uuid.uuid4()),
        instance_id="one",
        actor=ME,
    )
    return consumer_ids.check(joined.consumer_id)


def take(consumer: ConsumerId, queue: int) -> int:
    """Acquires the queue; the epoch."""
    (given,) = consumers.heartbeat(consumer=consumer, generation=0, owned=[]).assigned
    acquired = positions.acquire(consumer=consumer, queues=[Claim(queue, given.epoch)])
    assert acquired[0].state == "ok"
    return given.epoch


def test_a_second_live_holder_of_an_instance_id_fences_the_first(queue: int) -> None:
    first = join()
    old = take(first, queue)
    second = join()
    new = take(second, queue)

    with pytest.raises(Gone) as caught:
        consumers.heartbeat(consumer=first, generation=0, owned=[(queue, old)])
    assert caught.value.code == Code.REPLACED
    for epoch in (old, new):
        asked = [PullQueue(queue, epoch, 0)]
        (answer,) = pull.pull(consumer=first, queues=asked, max_messages=1, max_bytes=1)
        assert answer.state == "fenced"
        (result,) = positions.commit(
            consumer=first, offsets=[CommitOffset(queue, epoch, 0)]
        )
        assert result.state == "fenced"
    (result,) = positions.commit(consumer=second, offsets=[CommitOffset(queue, new, 0)])
    assert result.state == "ok"
