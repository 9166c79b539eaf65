"""Membership on a real database: who registers, returns, is replaced and expires."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from metadata.actors import Actor
from metadata.db.consumer_ids import check
from metadata.errors import Code, Forbidden, Gone, Invalid, NotFound
from metadata.groups import ownership
from metadata.membership import consumers, expiry
from metadata.models import ConsumerGroupConsumer
from tests.support import rows
from tests.support.rows import Member

pytestmark = pytest.mark.usefixtures("metadata_db")


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


def test_the_same_process_registering_again_gets_the_same_answer() -> None:
    rows.world()
    member = Member("a").register()
    member.beat()
    first, before = member.id, rows.epochs()

    member.register()

    assert member.id == first
    assert rows.epochs() == before


def test_another_incarnation_replaces_the_process_and_inherits_its_queues_under_new_epochs() -> (
    None
):
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
    processes = [Member("a").register() for _ in range(consumers.MAX_REPLACED + 2)]
    *replaced, live = processes

    for process in replaced[1:]:
        with pytest.raises(Gone) as caught:
            process.register()
        assert caught.value.code == Code.REPLACED

    assert len(live.beat().assigned) == 4
    assert (
        len(ConsumerGroupConsumer.objects.get().replaced_incarnations)
        == consumers.MAX_REPLACED
    )


def test_a_replaced_process_is_not_told_about_the_queues_of_its_successor() -> None:
    queues = rows.world()
    old = Member("a").register()
    Member("a").register()
    assert old.id is not None

    with pytest.raises(Gone):
        ownership.check_owned(consumer=old.id, queues=queues)


def test_silent_members_expire_and_their_queues_move() -> None:
    queues = rows.world(session_timeout_ms=2_000)
    dead, alive = Member("a").register(), Member("b").register()
    dead.beat(), dead.beat(), alive.beat()
    rows.silence(dead, seconds=3.5)

    assert expiry.expire_silent_members(guard=rows.steady_guard()) == 1

    assert [one.queue for one in alive.beat().assigned] == list(queues)
    with pytest.raises(Gone) as caught:
        dead.beat()
    assert caught.value.code == Code.EXPIRED


def test_nobody_expires_before_its_session_timeout_and_a_second() -> None:
    rows.world(session_timeout_ms=2_000)
    member = Member("a").register()
    rows.silence(member, seconds=2.5)

    assert expiry.expire_silent_members(guard=rows.steady_guard()) == 0


def test_nobody_expires_right_after_the_start_of_a_process() -> None:
    rows.world(session_timeout_ms=2_000)
    member = Member("a").register()
    rows.silence(member, seconds=1_000)

    assert expiry.expire_silent_members(guard=expiry.OutageGuard()) == 0


def test_a_heartbeat_between_look_and_lock_saves_a_member() -> None:
    rows.world(session_timeout_ms=2_000)
    member = Member("a").register()
    rows.silence(member, seconds=10)
    watch = rows.steady_guard().look()
    assert member.id is not None
    found = expiry._find_silent_members(watch)
    member.beat()

    assert found == [(member.id.member_id, member.id.group_id)]
    assert (
        expiry._expire_in_group(group_id=member.id.group_id, members=[member.id.member_id])
        == 0
    )


def test_an_expired_process_may_register_again() -> None:
    rows.world(session_timeout_ms=2_000)
    member = Member("a").register()
    rows.silence(member, seconds=10)
    expiry.expire_silent_members(guard=rows.steady_guard())
    before = member.id

    answer = member.register().beat()

    assert member.id != before
    assert len(answer.assigned) == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "a b"),
        ("name", ""),
        ("instance_id", "ö"),
        ("incarnation", "1"),
        ("incarnation", ""),
    ],
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


def test_a_group_without_subscriptions_has_members_without_queues() -> None:
    rows.node()
    rows.group(topics=())

    assert Member("a").register().beat().assigned == ()


def test_a_consumer_id_of_a_key_names_the_key() -> None:
    from metadata.users import api_keys

    rows.world()
    view, _ = api_keys.create(name="app", rights={"consume": ["*"]}, actor=rows.ME)
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
