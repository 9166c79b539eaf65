"""Membership and hand-over on a real database."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from metadata import consumers, rebalance, snapshot
from metadata.actors import Actor
from metadata.consumer_ids import check
from metadata.errors import Code, Forbidden, Gone, Invalid, MetadataUnavailable, NotFound
from metadata.models import Consumer, ConsumerGroup, ConsumerGroupConsumer, Heartbeat, QueueOffset
from tests.support import rows
from tests.support.rows import Member

pytestmark = pytest.mark.usefixtures("metadata_db")


def owners() -> dict[int, int | None]:
    return dict(QueueOffset.objects.values_list("queue_id", "owner_id"))


def epochs() -> dict[int, int]:
    return dict(QueueOffset.objects.values_list("queue_id", "epoch"))


def generation() -> int:
    return ConsumerGroup.objects.get().generation


def test_a_lone_member_owns_everything_at_its_first_heartbeat() -> None:
    queues = rows.world()

    answer = Member("a").register().beat()

    assert [one.queue for one in answer.assigned] == list(queues)
    assert {one.epoch for one in answer.assigned} == {1}
    assert {one.topic for one in answer.assigned} == {"orders"}
    assert answer.revoked == ()
    assert answer.generation == 1


def test_registering_tells_timeout_and_interval() -> None:
    rows.world(session_timeout_ms=6_000)

    told = consumers.register(
        group="billing",
        name="a",
        incarnation=str(uuid.uuid4()),
        instance_id=None,
        sdk="",
        address="",
        actor=rows.ME,
    )

    assert (told.session_timeout_ms, told.heartbeat_interval_ms) == (6_000, 2_000)


def test_a_queue_goes_to_its_new_owner_only_after_the_old_one_let_go() -> None:
    queues = rows.world()
    first = Member("a").register()
    first.beat()
    second = Member("b").register()

    assert second.beat().assigned == ()
    told = first.beat()
    assert told.revoked == queues[2:]
    assert second.beat().assigned == ()  # told, but not yet confirmed
    first.beat()

    assert [one.queue for one in second.beat().assigned] == list(queues[2:])
    assert second.owned == {queues[2]: 2, queues[3]: 2}
    assert first.beat().revoked == ()
    assert first.owned == {queues[0]: 1, queues[1]: 1}  # what stays keeps its epoch


def test_a_release_counts_only_at_the_generation_that_revoked() -> None:
    queues = rows.world()
    first = Member("a").register()
    first.beat()
    assert first.id is not None
    old = first.generation
    Member("b").register()

    told = consumers.heartbeat(consumer=first.id, generation=old, owned=[])

    assert set(told.revoked) == set(queues[2:])
    assert owners()[queues[2]] == first.id.member_id


def test_a_revoked_queue_that_is_still_held_stays_with_its_owner() -> None:
    queues = rows.world()
    first = Member("a").register()
    first.beat()
    held = dict(first.owned)
    Member("b").register()
    first.beat()
    assert first.id is not None

    consumers.heartbeat(consumer=first.id, generation=first.generation, owned=[*held.items()])

    assert owners()[queues[3]] == first.id.member_id


def test_a_release_raises_the_generation_and_reaches_the_snapshot() -> None:
    rows.world()
    first = Member("a").register()
    first.beat()
    Member("b").register()
    first.beat()
    before = generation()

    first.beat()

    assert generation() == before + 1
    snapshot.refresh()
    assert snapshot.find_group("billing").generation == before + 1


def test_a_leaving_queue_that_comes_back_to_its_owner_has_a_new_epoch() -> None:
    queues = rows.world()
    first = Member("a").register()
    first.beat()
    second = Member("b").register()
    first.beat()

    second.leave()

    assert epochs() == {queues[0]: 1, queues[1]: 1, queues[2]: 2, queues[3]: 2}
    first.beat()
    assert first.owned == epochs()


def test_leaving_gives_the_queues_away_at_once_and_twice_is_fine() -> None:
    queues = rows.world()
    first, second = Member("a").register(), Member("b").register()
    first.beat(), first.beat(), second.beat()

    first.leave()
    first.leave()

    assert sorted(one.queue for one in second.beat().assigned) == sorted(queues)
    with pytest.raises(Gone) as caught:
        first.beat()
    assert caught.value.code == Code.EXPIRED
    assert Consumer.objects.count() == ConsumerGroupConsumer.objects.count() == Heartbeat.objects.count() == 1


def test_the_same_process_registering_again_gets_the_same_answer() -> None:
    rows.world()
    member = Member("a").register()
    member.beat()
    first, before = member.id, epochs()

    member.register()

    assert member.id == first
    assert epochs() == before


def test_another_incarnation_replaces_the_process_and_inherits_its_queues_under_new_epochs() -> None:
    queues = rows.world()
    old = Member("a").register()
    old.beat()
    new = Member("a").register()

    new.beat()

    assert new.owned == dict.fromkeys(queues, 2)
    assert new.id != old.id
    with pytest.raises(Gone) as caught:
        old.beat()
    assert caught.value.code == Code.REPLACED


def test_a_replaced_process_does_not_come_back_under_its_name() -> None:
    rows.world()
    old = Member("a").register()
    Member("a").register()

    with pytest.raises(Gone) as caught:
        old.register()

    assert caught.value.code == Code.REPLACED


def test_none_of_the_last_replaced_processes_comes_back_under_its_name() -> None:
    rows.world()
    processes = [Member("a").register() for _ in range(consumers.MOST_REPLACED + 2)]
    *replaced, live = processes

    for process in replaced[1:]:
        with pytest.raises(Gone) as caught:
            process.register()
        assert caught.value.code == Code.REPLACED

    assert len(live.beat().assigned) == 4
    assert len(ConsumerGroupConsumer.objects.get().replaced_incarnations) == consumers.MOST_REPLACED


def test_a_replaced_process_is_not_told_about_the_queues_of_its_successor() -> None:
    queues = rows.world()
    old = Member("a").register()
    Member("a").register()
    assert old.id is not None

    with pytest.raises(Gone):
        consumers.check_owned(consumer=old.id, queues=queues)


def test_a_static_member_comes_back_under_another_name_without_a_rebalance() -> None:
    queues = rows.world()
    Member("other").register().beat()
    old = Member("pod-1", instance_id="one").register()
    rebalanced = generation()

    new = Member("pod-2", instance_id="one").register()

    assert generation() == rebalanced
    assert new.id is not None
    assert old.id is not None
    assert new.id.member_id == old.id.member_id
    assert set(QueueOffset.objects.values_list("target_id", flat=True)) == set(owners().values()) | {
        new.id.member_id
    }
    assert len(queues) == 4


def test_queues_that_were_leaving_a_replaced_process_go_to_their_target_at_once() -> None:
    queues = rows.world()
    old = Member("a").register()
    old.beat()
    second = Member("b").register()

    Member("a").register()

    assert sorted(one.queue for one in second.beat().assigned) == list(queues[2:])


def test_silent_members_expire_and_their_queues_move() -> None:
    queues = rows.world(session_timeout_ms=2_000)
    dead, alive = Member("a").register(), Member("b").register()
    dead.beat(), dead.beat(), alive.beat()
    rows.silence(dead, seconds=3.5)

    assert consumers.expire(guard=rows.steady_guard()) == 1

    assert [one.queue for one in alive.beat().assigned] == list(queues)
    with pytest.raises(Gone) as caught:
        dead.beat()
    assert caught.value.code == Code.EXPIRED


def test_nobody_expires_before_its_session_timeout_and_a_second() -> None:
    rows.world(session_timeout_ms=2_000)
    member = Member("a").register()
    rows.silence(member, seconds=2.5)

    assert consumers.expire(guard=rows.steady_guard()) == 0


def test_nobody_expires_right_after_the_start_of_a_process() -> None:
    rows.world(session_timeout_ms=2_000)
    member = Member("a").register()
    rows.silence(member, seconds=1_000)

    assert consumers.expire(guard=consumers.OutageGuard()) == 0


def test_a_heartbeat_between_look_and_lock_saves_a_member() -> None:
    rows.world(session_timeout_ms=2_000)
    member = Member("a").register()
    rows.silence(member, seconds=10)
    watch = rows.steady_guard().look()
    assert member.id is not None
    found = consumers._silent(watch)
    member.beat()

    assert found == [(member.id.member_id, member.id.group_id)]
    assert consumers._expired(group_id=member.id.group_id, members=[member.id.member_id], watch=watch) == 0


def test_an_expired_process_may_register_again() -> None:
    rows.world(session_timeout_ms=2_000)
    member = Member("a").register()
    rows.silence(member, seconds=10)
    consumers.expire(guard=rows.steady_guard())
    before = member.id

    answer = member.register().beat()

    assert member.id != before
    assert len(answer.assigned) == 4


def test_only_owned_queues_may_be_acquired_and_under_their_epochs() -> None:
    queues = rows.world()
    first = Member("a").register()
    first.beat()
    Member("b").register()
    assert first.id is not None

    assert consumers.check_owned(consumer=first.id, queues=[*queues, 999]) == {queues[0]: 1, queues[1]: 1}


def test_metadata_takes_a_higher_epoch_of_a_node_and_never_a_lower_one() -> None:
    queues = rows.world()
    member = Member("a").register()
    member.beat()
    assert member.id is not None
    group = member.id.group_id

    assert consumers.adopt_node_epoch(group_id=group, queue=queues[0], epoch=7) == 8
    assert consumers.adopt_node_epoch(group_id=group, queue=queues[0], epoch=3) == 8

    member.beat()
    assert member.owned[queues[0]] == 8
    assert member.owned[queues[1]] == 1
    with pytest.raises(NotFound):
        consumers.adopt_node_epoch(group_id=group, queue=999, epoch=1)


def test_a_stopped_group_is_told_at_the_next_heartbeat() -> None:
    from metadata import groups, subscriptions

    rows.world()
    member = Member("a").register()
    member.beat()
    before = generation()

    groups.update(name="billing", settings={"stopped": True}, actor=rows.ME)
    assert all(one.stopped for one in member.beat().assigned)
    groups.update(name="billing", settings={"stopped": False}, actor=rows.ME)
    subscriptions.update(group="billing", topic="orders", settings={"stopped": True}, actor=rows.ME)
    assert all(one.stopped for one in member.beat().assigned)
    subscriptions.update(group="billing", topic="orders", settings={"stopped": False}, actor=rows.ME)
    assert not any(one.stopped for one in member.beat().assigned)
    assert generation() == before + 4


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", "a b"), ("name", ""), ("instance_id", "ö"), ("incarnation", "1"), ("incarnation", "")],
)
def test_bad_registrations_are_refused_naming_the_field(field: str, value: str) -> None:
    rows.world()

    with pytest.raises(Invalid) as caught:
        replace(Member("a"), **{field: value}).register()

    assert caught.value.errors[0].field == field
    assert not ConsumerGroupConsumer.objects.exists()


def test_registering_in_an_unknown_group_or_without_the_right_is_refused() -> None:
    rows.world()
    with pytest.raises(NotFound) as caught:
        Member("a", group="nobody").register()
    assert caught.value.code == Code.GROUP_NOT_FOUND

    stranger = Actor(kind="key", name="k", rights={"consume": ("other",)}, key_id=1)
    with pytest.raises(Forbidden):
        consumers.register(
            group="billing",
            name="a",
            incarnation=str(uuid.uuid4()),
            instance_id=None,
            sdk="",
            address="",
            actor=stranger,
        )


def test_members_that_join_at_once_share_the_queues_evenly(in_threads: Callable[..., list[Any]]) -> None:
    rows.world(queues=12)
    members = [Member(f"m{number}") for number in range(6)]

    in_threads([member.register for member in members])
    for _ in range(3):
        in_threads([member.beat for member in members])

    assert sorted(len(member.owned) for member in members) == [2] * 6
    assert len({queue for member in members for queue in member.owned}) == 12
    assert rebalance.pending() == []


def test_no_epoch_is_ever_owned_by_two_members_while_they_come_and_go(
    in_threads: Callable[..., list[Any]],
) -> None:
    rows.world(queues=8)
    held: list[tuple[int, int, str]] = []

    def life(number: int) -> None:
        for turn in range(4):
            member = Member(f"m{number}-{turn}").register()
            for _ in range(3):
                member.beat()
                held.extend((queue, epoch, member.name) for queue, epoch in member.owned.items())
            member.leave()

    in_threads([lambda number=number: life(number) for number in range(5)])

    holders: dict[tuple[int, int], set[str]] = {}
    for queue, epoch, name in held:
        holders.setdefault((queue, epoch), set()).add(name)
    assert all(len(names) == 1 for names in holders.values())
    assert set(owners().values()) == {None}


def test_heartbeats_of_many_members_are_all_recorded(in_threads: Callable[..., list[Any]]) -> None:
    rows.world(queues=2)
    members = [Member(f"m{number}").register() for number in range(20)]
    for member in members:
        rows.silence(member, seconds=100)

    in_threads([member.beat for member in members])

    assert consumers.expire(guard=rows.steady_guard()) == 0


def test_a_heartbeat_is_refused_while_the_database_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import OperationalError

    from metadata import heartbeats

    rows.world()
    member = Member("a").register()

    def away(beats: object) -> dict[int, str]:
        raise OperationalError(2013, "Lost connection to server during query")

    monkeypatch.setattr(heartbeats, "_texts", away)
    with pytest.raises(MetadataUnavailable):
        member.beat()
    monkeypatch.undo()

    assert len(member.beat().assigned) == 4


def test_a_group_without_subscriptions_has_members_without_queues() -> None:
    rows.node()
    rows.group(topics=())

    assert Member("a").register().beat().assigned == ()


def test_a_consumer_id_of_a_key_names_the_key() -> None:
    from metadata import keys

    rows.world()
    view, _ = keys.create(name="app", rights={"consume": ["*"]}, actor=rows.ME)
    actor = Actor(kind="key", name="app", rights=view.rights, key_id=view.id)

    told = consumers.register(
        group="billing",
        name="a",
        incarnation=str(uuid.uuid4()),
        instance_id=None,
        sdk="",
        address="",
        actor=actor,
    )

    assert check(told.consumer_id).key_id == view.id
