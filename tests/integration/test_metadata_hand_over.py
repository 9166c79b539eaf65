"""Hand-over of queues from one member to the next, on a real database."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import connection

from metadata.cache import snapshot
from metadata.errors import Code, Gone, MetadataUnavailable, NotFound
from metadata.groups import ownership
from metadata.limits.bulkhead import PLACES, bulkhead
from metadata.membership import consumers, expiry, heartbeats, rebalance
from metadata.models import (
    Consumer,
    ConsumerGroup,
    ConsumerGroupConsumer,
    Heartbeat,
    QueueOffset,
)
from tests.support import rows
from tests.support.rows import Member

pytestmark = pytest.mark.usefixtures("metadata_db")


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
    assert rows.owners()[queues[2]] == first.id.member_id


def test_a_release_gives_nothing_away_that_a_later_generation_revoked() -> None:
    rows.world()
    first = Member("a").register()
    first.beat()
    assert first.id is not None
    Member("b").register()
    applied = rows.generation()
    for name in ("c", "d"):
        Member(name).register()
    owned = QueueOffset.objects.filter(owner=first.id.member_id)
    leaving = list(owned.exclude(target=first.id.member_id))
    later = [row.queue_id for row in leaving if row.target_generation > applied]
    assert later and len(later) < len(leaving), "some were revoked by each generation"

    consumers.heartbeat(consumer=first.id, generation=applied, owned=[])

    still_held = [
        queue for queue, owner in rows.owners().items() if owner == first.id.member_id
    ]
    assert set(later) <= set(still_held)
    assert len(still_held) == 4 - len(leaving) + len(later)


def test_a_revoked_queue_that_is_still_held_stays_with_its_owner() -> None:
    queues = rows.world()
    first = Member("a").register()
    first.beat()
    held = dict(first.owned)
    Member("b").register()
    first.beat()
    assert first.id is not None

    consumers.heartbeat(
        consumer=first.id, generation=first.generation, owned=[*held.items()]
    )

    assert rows.owners()[queues[3]] == first.id.member_id


def test_a_release_raises_the_generation_and_reaches_the_snapshot() -> None:
    rows.world()
    first = Member("a").register()
    first.beat()
    Member("b").register()
    first.beat()
    before = rows.generation()

    first.beat()

    assert rows.generation() == before + 1
    snapshot.refresh()
    assert snapshot.find_group("billing").generation == before + 1


def test_a_leaving_queue_that_comes_back_to_its_owner_has_a_new_epoch() -> None:
    queues = rows.world()
    first = Member("a").register()
    first.beat()
    second = Member("b").register()
    first.beat()

    second.leave()

    assert rows.epochs() == {queues[0]: 1, queues[1]: 1, queues[2]: 2, queues[3]: 2}
    first.beat()
    assert first.owned == rows.epochs()


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
    assert (
        Consumer.objects.count()
        == ConsumerGroupConsumer.objects.count()
        == Heartbeat.objects.count()
        == 1
    )


def test_queues_that_were_leaving_a_replaced_process_go_to_their_target_at_once() -> None:
    queues = rows.world()
    old = Member("a").register()
    old.beat()
    second = Member("b").register()

    Member("a").register()

    assert sorted(one.queue for one in second.beat().assigned) == list(queues[2:])


def test_only_owned_queues_may_be_acquired_and_under_their_epochs() -> None:
    queues = rows.world()
    first = Member("a").register()
    first.beat()
    Member("b").register()
    assert first.id is not None

    assert ownership.check_owned(consumer=first.id, queues=[*queues, 999]) == {
        queues[0]: 1,
        queues[1]: 1,
    }


def test_metadata_takes_a_higher_epoch_of_a_node_and_never_a_lower_one() -> None:
    queues = rows.world()
    member = Member("a").register()
    member.beat()
    assert member.id is not None
    group = member.id.group_id

    assert ownership.adopt_node_epoch(group_id=group, queue=queues[0], epoch=7) == 8
    assert ownership.adopt_node_epoch(group_id=group, queue=queues[0], epoch=3) == 8

    member.beat()
    assert member.owned[queues[0]] == 8
    assert member.owned[queues[1]] == 1
    with pytest.raises(NotFound):
        ownership.adopt_node_epoch(group_id=group, queue=999, epoch=1)


def test_a_stopped_group_is_told_at_the_next_heartbeat() -> None:
    from metadata.groups import groups, subscription_rows

    rows.world()
    member = Member("a").register()
    member.beat()
    before = rows.generation()

    groups.update(name="billing", settings={"stopped": True}, actor=rows.ME)
    assert all(one.stopped for one in member.beat().assigned)
    groups.update(name="billing", settings={"stopped": False}, actor=rows.ME)
    subscription_rows.update(
        group="billing", topic="orders", settings={"stopped": True}, actor=rows.ME
    )
    assert all(one.stopped for one in member.beat().assigned)
    subscription_rows.update(
        group="billing", topic="orders", settings={"stopped": False}, actor=rows.ME
    )
    assert not any(one.stopped for one in member.beat().assigned)
    assert rows.generation() == before + 4


def test_members_that_join_at_once_share_the_queues_evenly(
    in_threads: Callable[..., list[Any]],
) -> None:
    rows.world(queues=12)
    members = [Member(f"m{number}") for number in range(6)]

    in_threads([member.register for member in members])
    for _ in range(3):
        in_threads([member.beat for member in members])

    assert sorted(len(member.owned) for member in members) == [2] * 6
    assert len({queue for member in members for queue in member.owned}) == 12
    assert rebalance.pending_groups() == []


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
                held.extend(
                    (queue, epoch, member.name) for queue, epoch in member.owned.items()
                )
            member.leave()

    # more might be refused
    in_threads([lambda number=number: life(number) for number in range(PLACES)])

    holders: dict[tuple[int, int], set[str]] = {}
    for queue, epoch, name in held:
        holders.setdefault((queue, epoch), set()).add(name)
    assert all(len(names) == 1 for names in holders.values())
    assert set(rows.owners().values()) == {None}


def test_heartbeats_of_many_members_are_all_recorded(
    in_threads: Callable[..., list[Any]],
) -> None:
    rows.world(queues=2)
    members = [Member(f"m{number}").register() for number in range(20)]
    for member in members:
        rows.silence(member, seconds=100)

    in_threads([member.beat for member in members])

    assert expiry.expire_silent_members(guard=rows.steady_guard()) == 0


def test_a_heartbeat_is_refused_while_the_database_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from django.db import OperationalError

    rows.world()
    member = Member("a").register()

    def away(ids: object) -> None:
        raise OperationalError(2013, "Lost connection to server during query")

    monkeypatch.setattr(heartbeats, "_find_members", away)
    with pytest.raises(MetadataUnavailable):
        member.beat()
    monkeypatch.undo()

    assert len(member.beat().assigned) == 4


def test_what_a_member_says_it_holds_and_does_not_own_is_asked_back() -> None:
    queues = rows.world()
    member = Member("a").register()
    member.beat()
    assert member.id is not None
    before = rows.owners(), rows.epochs()

    told = consumers.heartbeat(
        consumer=member.id,
        generation=member.generation,
        owned=[(queues[0], 77), (10**6, 1)],
    )

    assert told.revoked == (10**6,)
    assert [one.epoch for one in told.assigned] == [1, 1, 1, 1]
    assert (rows.owners(), rows.epochs()) == before


def test_hand_overs_go_on_while_registrations_fill_the_bulkhead() -> None:
    queues = rows.world()
    first = Member("a").register()
    first.beat()
    second = Member("b").register()

    with ExitStack() as registrations:
        for _ in range(PLACES):
            registrations.enter_context(bulkhead.permit())
        with pytest.raises(MetadataUnavailable):
            Member("c").register()
        first.beat(), first.beat(), second.beat()
        assert second.id is not None
        owned = ownership.check_owned(consumer=second.id, queues=queues)

    assert list(owned) == list(queues[2:])


def test_generations_of_many_groups_are_noted_in_one_statement() -> None:
    """A statement, and a commit, for each would hold up everybody's heartbeat."""
    rows.node()
    beats = []
    for generation in range(11, 16):
        rows.group(f"g{generation}", topics=())
        member = Member("a", group=f"g{generation}").register()
        ConsumerGroup.objects.filter(name=f"g{generation}").update(generation=generation)
        assert member.id is not None
        beats.append(heartbeats._Beat(member.id, generation))

    updates: list[str] = []

    def look(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if re.match(r"UPDATE .metadata_consumergroupconsumer", sql):
            updates.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(look):
        heartbeats._record(beats)

    assert len(updates) == 1
    noted = ConsumerGroupConsumer.objects.order_by("pk").values_list(
        "generation", flat=True
    )
    assert list(noted) == [11, 12, 13, 14, 15]


def test_a_batch_in_quiet_times_asks_twice_and_knows_every_change_at_once() -> None:
    """Who the members are, and that they live: what they own is remembered while the
    generation stands.
    """
    queues = rows.world()
    first = Member("a").register()
    first.beat()
    first.beat()
    assert first.id is not None
    beat = heartbeats._Beat(first.id, first.generation)

    asked: list[str] = []

    def look(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        asked.append(sql.split()[0])
        return execute(sql, *rest)

    with connection.execute_wrapper(look):
        (seen,) = heartbeats._record([beat])
    assert asked == ["SELECT", "UPDATE"]
    assert [one.queue for one in seen.held] == list(queues)

    Member("b").register()
    (seen,) = heartbeats._record([beat])
    assert {one.queue for one in seen.held if one.leaving} == set(queues[2:])


def test_what_is_remembered_of_a_member_is_not_that_of_its_successor() -> None:
    queues = rows.world()
    first = Member("a", instance_id="one").register()
    first.beat()
    heir = Member("a", instance_id="one").register()

    assert first.id is not None
    first_told = heartbeats._record([heartbeats._Beat(first.id, 0)])[0]
    told = heir.beat()

    assert first_told.gone is not None
    assert [(one.queue, one.epoch) for one in told.assigned] == [
        (queue, 2) for queue in queues
    ]


def test_of_members_that_join_at_once_the_first_rebalance_is_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows.world()
    later: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(consumers, "rebalance_now", later.append)
        Member("a").register()
        Member("b").register()

    with monkeypatch.context() as patch:
        runs: list[int] = []
        made = rebalance._rebalance_group

        def counted(group: ConsumerGroup) -> rebalance.RebalanceResult:
            runs.append(group.pk)
            return made(group)

        patch.setattr(rebalance, "_rebalance_group", counted)
        for group_id in later:
            rebalance.rebalance_if_due(group_id)

    assert len(later) == 2
    assert len(runs) == 1
