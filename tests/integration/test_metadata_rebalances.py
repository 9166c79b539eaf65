"""Rebalances on a real database: history, limits of a group, what is asked for by hand,
stopped queues.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from catmq_site.background import sweeps
from catmq_site.jobs import tasks
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import clock
from metadata.errors import (
    Code,
    Conflict,
    Forbidden,
    Invalid,
    MetadataUnavailable,
    NotFound,
)
from metadata.groups import groups, subscription_rows
from metadata.listing import consumer_lists
from metadata.listing.pages import ListQuery
from metadata.membership import expiry, rebalance, rebalance_history
from metadata.membership.rebalance import RebalanceResult
from metadata.models import (
    AuditLog,
    ConsumerGroup,
    Heartbeat,
    QueueOffset,
    Rebalance,
    RebalanceMove,
)
from tests.support import rows
from tests.support.rows import ME, Member

pytestmark = pytest.mark.usefixtures("metadata_db")


def past(group: str = "billing") -> list[rebalance_history.RebalanceView]:
    """The group's rebalances, the newest first."""
    return rebalance_history.list_rebalances(group=group, actor=ME)[0]


def acquire(member: Member) -> None:
    """What the node tells metadata once the member has acquired its queues."""
    assert member.id is not None
    rebalance_history.record_acquired(consumer=member.id, queues=[*member.owned.items()])


def joined(name: str) -> Member:
    """A member that has acquired what it was assigned."""
    member = Member(name).register()
    member.beat()
    acquire(member)
    return member


def test_a_heartbeat_of_a_moment_after_the_look_is_not_heard_before_it() -> None:
    """The heartbeat may be written between the reading of the clock and that of the row."""
    rows.world()
    joined("a")
    Heartbeat.objects.update(last_seen=clock.database_now() + timedelta(milliseconds=284))
    (member,) = groups.describe(name="billing", actor=ME).members
    assert member.heartbeat_age_ms == 0
    (row,) = consumer_lists.consumers(query=ListQuery(), actor=ME).items
    assert row.silent_ms == 0


# -------------------------------------------------------------------------------------------
# history


def test_a_join_leaves_a_row_with_cause_members_and_moves() -> None:
    queues = rows.world()

    joined("a")

    (row,) = past()
    assert (row.cause, row.generation) == ("subscribed to orders; a joined", 1)
    assert row.assignment == {"a": list(queues)}
    assert [(move.queue, move.from_member, move.to_member) for move in row.moves] == [
        (queue, None, "a") for queue in queues
    ]


def test_a_pause_runs_from_the_order_to_give_up_until_the_next_owner_acquired() -> None:
    queues = rows.world()
    first = joined("a")
    second = Member("b").register()
    first.beat()
    first.beat()
    second.beat()
    assert [move.pause_ms for move in past()[0].moves] == [None, None]

    acquire(second)

    moves = past()[0].moves
    assert [(move.queue, move.from_member, move.to_member) for move in moves] == [
        (queue, "a", "b") for queue in queues[2:]
    ]
    assert all(move.pause_ms is not None and 0 <= move.pause_ms < 60_000 for move in moves)
    assert not QueueOffset.objects.filter(idle_since__isnull=False).exists()


def test_the_pause_of_a_dead_owners_queue_counts_from_when_it_was_last_heard() -> None:
    rows.world(session_timeout_ms=2_000)
    dead = joined("a")
    heir = Member("b").register()
    rows.silence(dead, seconds=30)
    assert expiry.expire_silent_members(guard=rows.steady_guard()) == 1
    heir.beat()
    acquire(heir)

    row = past()[0]
    assert row.cause == "a expired"
    assert {move.from_member for move in row.moves} == {"a"}
    assert [
        move.pause_ms is not None and move.pause_ms >= 29_000 for move in row.moves
    ] == [True] * 4


def test_a_move_that_was_overtaken_has_no_pause_and_the_next_one_counts_from_the_beginning() -> (
    None
):
    queues = rows.world(queues=1)
    first = joined("a")
    second = Member("b").register()  # nothing for it
    first.leave()  # the queue goes to b, which never acquires it
    QueueOffset.objects.filter(queue_id=queues[0]).update(idle_since="2026-01-01 00:00:00Z")
    second.leave()
    third = Member("c").register()
    third.beat()
    acquire(third)

    newest, nobody, before, *_ = past()
    assert (nobody.cause, nobody.moves) == ("b left", ())
    assert (newest.moves[0].to_member, before.moves[0].to_member) == ("c", "b")
    assert before.moves[0].pause_ms is None
    assert newest.moves[0].pause_ms is not None and newest.moves[0].pause_ms > 86_400_000


def test_a_repeated_acquire_and_one_of_an_old_epoch_change_no_pause() -> None:
    queues = rows.world(queues=1)
    member = joined("a")
    before = past()
    QueueOffset.objects.update(idle_since="2026-01-01 00:00:00Z")
    assert member.id is not None

    rebalance_history.record_acquired(consumer=member.id, queues=[(queues[0], 7)])

    assert past() == before
    assert QueueOffset.objects.filter(idle_since__isnull=False).exists()


def test_an_acquire_that_could_not_be_noted_is_noted_later_with_the_pause_it_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows.world(queues=1)
    now = [1_000.0]
    monkeypatch.setattr(
        rebalance_history, "time", SimpleNamespace(monotonic=lambda: now[0])
    )
    member = Member("a").register()
    member.beat()
    with monkeypatch.context() as patch:
        patch.setattr("metadata.limits.bulkhead.bulkhead._failed", 99)
        patch.setattr("metadata.limits.bulkhead.bulkhead._next_probe", float("inf"))
        acquire(member)
        with pytest.raises(MetadataUnavailable):
            rebalance_history.write_late_notes()
    QueueOffset.objects.update(idle_since=clock.before(clock.database_now(), seconds=700))

    now[0] += 600.0
    rebalance_history.write_late_notes()

    (pause_ms,) = (move.pause_ms for move in past()[0].moves)
    assert pause_ms is not None and 99_000 <= pause_ms < 200_000
    assert not QueueOffset.objects.filter(idle_since__isnull=False).exists()


def test_a_rebalance_that_was_not_asked_for_and_moves_nothing_leaves_no_row() -> None:
    rows.world()
    joined("a")
    count = Rebalance.objects.count()

    rebalance.rebalance(ConsumerGroup.objects.get().pk)

    assert Rebalance.objects.count() == count


def test_causes_add_up_until_somebody_rebalances() -> None:
    rows.world()
    group = ConsumerGroup.objects.get()
    rebalance.rebalance(group.pk)
    assert rebalance.mark_due(group.pk, "one")
    assert not rebalance.mark_due(group.pk, "two")
    for number in range(200):
        rebalance.mark_due(group.pk, f"cause {number}")

    rebalance.rebalance(group.pk)

    assert past()[0].cause.startswith("one; two; cause 0")
    assert len(past()[0].cause) == rebalance.MAX_CAUSE
    assert ConsumerGroup.objects.get().rebalance_cause == ""


def test_the_history_is_paged_and_needs_a_right_on_the_group() -> None:
    rows.world()
    for _ in range(5):
        rebalance.rebalance_by_hand(group="billing", actor=ME)
    ids = [row.id for row in past()]

    first, behind = rebalance_history.list_rebalances(group="billing", actor=ME, limit=4)
    rest, end = rebalance_history.list_rebalances(
        group="billing", actor=ME, limit=4, after=behind
    )

    assert [row.id for row in (*first, *rest)] == ids
    assert end is None
    with pytest.raises(Forbidden):
        rebalance_history.list_rebalances(
            group="billing",
            actor=Actor(kind="key", name="k", rights={"consume": ("other",)}),
        )
    with pytest.raises(NotFound):
        rebalance_history.list_rebalances(group="Billing", actor=ME)
    with pytest.raises(Invalid):
        rebalance_history.list_rebalances(group="billing", actor=ME, limit=0)


def test_old_rebalances_and_too_many_of_one_group_are_pruned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows.world()
    for _ in range(4):
        rebalance.rebalance_by_hand(group="billing", actor=ME)
    newest = past()[0].id
    monkeypatch.setattr(
        rebalance_history, "prune", replace(rebalance_history.prune, most_each=3)
    )
    extra = Rebalance.objects.count() - 3
    assert rebalance_history.prune() == extra
    Rebalance.objects.exclude(pk=newest).update(at="2020-01-01 00:00:00Z")
    assert rebalance_history.prune() == 2
    assert [row.id for row in past()] == [newest]
    assert not RebalanceMove.objects.exclude(rebalance_id=newest).exists()


# --------------------------------------------------------------------------------------------
# limits


def test_the_group_shares_its_queues_among_so_many_members_only() -> None:
    queues = rows.world(max_active_members=1)
    first, second = joined("a"), joined("b")
    assert (set(first.owned), set(second.owned)) == (set(queues), set())
    assert [one.active for one in groups.describe(name="billing", actor=ME).members] == [
        True,
        False,
    ]

    first.leave()

    assert [one.queue for one in second.beat().assigned] == list(queues)


def test_a_changed_limit_moves_queues_and_says_so_in_the_history() -> None:
    rows.world()
    first = joined("a")
    groups.update(name="billing", settings={"deny_addresses": "127.0.0.0/8"}, actor=ME)
    assert rebalance.pending_groups()
    rebalance.rebalance(ConsumerGroup.objects.get().pk)

    assert first.beat().assigned == ()
    assert past()[0].cause == "deny_addresses changed"
    first.beat()

    groups.update(name="billing", settings={"deny_addresses": ""}, actor=ME)
    rebalance.rebalance(ConsumerGroup.objects.get().pk)

    assert len(first.beat().assigned) == 4


# --------------------------------------------------------------------------------------------
# by hand


def test_a_plan_says_what_would_move_and_changes_nothing() -> None:
    queues = rows.world()
    group = ConsumerGroup.objects.get()
    joined("a")
    before = list(QueueOffset.objects.values()), list(ConsumerGroup.objects.values())
    groups.update(name="billing", settings={"deny_addresses": "127.0.0.1"}, actor=ME)
    ConsumerGroup.objects.filter(pk=group.pk).update(deny_addresses="127.0.0.1")
    marked = list(ConsumerGroup.objects.values())

    planned = rebalance.rebalance_by_hand(group="billing", dry_run=True, actor=ME)

    assert [
        (move.queue, move.source, move.target, move.at_once) for move in planned.moves
    ] == [(queue, "a", None, False) for queue in queues]
    assert list(QueueOffset.objects.values()) == before[0]
    assert list(ConsumerGroup.objects.values()) == marked
    assert rebalance.rebalance_by_hand(group="billing", actor=ME).moves == planned.moves


def test_asking_needs_manage_and_is_audited() -> None:
    rows.world()
    joined("a")
    with pytest.raises(Forbidden):
        rebalance.rebalance_by_hand(
            group="billing", actor=Actor(kind="key", name="k", rights={"consume": ("*",)})
        )
    assert not Rebalance.objects.filter(cause__startswith="asked").exists()

    rebalance.rebalance_by_hand(group="billing", actor=ME)

    assert past()[0].cause == "asked for by command test"
    assert AuditLog.objects.filter(verb="rebalance", name="billing").count() == 1
    with pytest.raises(NotFound) as caught:
        rebalance.rebalance_by_hand(group="nobody", actor=ME)
    assert caught.value.code == Code.GROUP_NOT_FOUND


# ----------------------------------------------------------------------------------------
# who runs it


def test_the_minute_sweep_finds_marked_groups_and_queues_that_a_lost_mark_left() -> None:
    queues = rows.world()
    member = joined("a")
    QueueOffset.objects.filter(queue_id=queues[0]).update(owner=None, target=None)
    assert (rebalance.pending_groups(), rebalance.groups_with_unassigned_queues()) == (
        [],
        [ConsumerGroup.objects.get().pk],
    )

    assert sweeps.sweep_rebalances() == 1

    assert rebalance.groups_with_unassigned_queues() == []
    assert {one.queue for one in member.beat().assigned} == set(queues)
    assert past()[0].cause == "the sweep found queues without an owner"


def test_a_task_that_waited_for_more_than_a_minute_does_nothing() -> None:
    from metadata.db.clock import database_now, ms

    rows.world()
    group = ConsumerGroup.objects.get().pk
    now = ms(database_now())

    assert tasks.run_rebalance(group, now - 61_000) is False
    assert rebalance.pending_groups() == [group]
    assert tasks.run_rebalance(group, now) is True
    assert rebalance.pending_groups() == []
    assert tasks.run_rebalance(group + 1, now) is False


def test_tasks_do_not_pile_up_while_nobody_takes_them() -> None:
    from django_q.models import OrmQ

    rows.world()
    OrmQ.objects.all().delete()
    for _ in range(tasks.MAX_WAITING_TASKS + 5):
        tasks.ask_for_rebalance(ConsumerGroup.objects.get().pk)
    assert OrmQ.objects.count() == tasks.MAX_WAITING_TASKS
    OrmQ.objects.all().delete()


# -------------------------------------------------------------------------------------
# stopped queues


def test_a_stopped_queue_stays_with_its_owner_and_is_told_at_the_next_heartbeat() -> None:
    queues = rows.world()
    member = joined("a")
    before = member.generation

    subscription_rows.update(
        group="billing", topic="orders", settings={"stopped_queues": [queues[1]]}, actor=ME
    )

    answer = member.beat()
    assert {one.queue: one.stopped for one in answer.assigned} == {
        queue: queue == queues[1] for queue in queues
    }
    assert answer.generation == before + 1
    snapshot.refresh()
    known = snapshot.current()
    group = known.group("billing")
    assert group is not None
    assert [known.is_stopped(group.id, known.queues[queue]) for queue in queues] == [
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("wrong", [[10**6], ["1"], [True], "1", [1, 1]])
def test_a_queue_of_another_topic_cannot_be_stopped(wrong: Any) -> None:
    rows.world()
    rows.topic("other")
    with pytest.raises(Invalid) as caught:
        subscription_rows.update(
            group="billing", topic="orders", settings={"stopped_queues": wrong}, actor=ME
        )
    assert caught.value.errors[0].field == "stopped_queues"
    assert (
        subscription_rows.find_subscription(
            group="billing", topic="orders", actor=ME
        ).stopped_queues
        == ()
    )


def test_stopping_a_queue_is_audited_with_before_and_after() -> None:
    queues = rows.world()
    for stopped in ([queues[0]], [queues[0]], []):
        subscription_rows.update(
            group="billing", topic="orders", settings={"stopped_queues": stopped}, actor=ME
        )
    found = AuditLog.objects.filter(kind="subscription", verb="update").order_by("id")
    assert [(row.before, row.after) for row in found] == [
        ({"stopped_queues": []}, {"stopped_queues": [queues[0]]}),
        ({"stopped_queues": [queues[0]]}, {"stopped_queues": []}),
    ]


# -------------------------------------------------------------------------------- what a
# review found


def test_a_shorter_session_timeout_waits_until_nobody_relies_on_the_longer_one() -> None:
    rows.world(session_timeout_ms=60_000)
    member = joined("a")
    with pytest.raises(Conflict) as caught:
        groups.update(name="billing", settings={"session_timeout_ms": 2_000}, actor=ME)
    assert caught.value.code == Code.IN_USE
    groups.update(name="billing", settings={"session_timeout_ms": 90_000}, actor=ME)
    member.leave()
    groups.update(name="billing", settings={"session_timeout_ms": 2_000}, actor=ME)
    assert ConsumerGroup.objects.get().session_timeout_ms == 2_000


def test_a_group_that_cannot_be_reached_keeps_no_other_from_expiring_its_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows.world(session_timeout_ms=2_000)
    rows.group("other", session_timeout_ms=2_000)
    dead = [Member("a", group=group).register() for group in ("billing", "other")]
    for one in dead:
        rows.silence(one, seconds=30)
    real, stuck = expiry._expire_in_group, ConsumerGroup.objects.get(name="billing").pk

    def expired(*, group_id: int, members: Any) -> int:
        if group_id == stuck:
            raise MetadataUnavailable("locked")
        return real(group_id=group_id, members=members)

    monkeypatch.setattr(expiry, "_expire_in_group", expired)
    with pytest.raises(MetadataUnavailable):
        expiry.expire_silent_members(guard=rows.steady_guard())
    assert [group.members.count() for group in ConsumerGroup.objects.order_by("pk")] == [
        1,
        0,
    ]


def test_an_outage_in_the_middle_of_a_pass_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rows.world(session_timeout_ms=2_000)
    rows.silence(Member("a").register(), seconds=30)
    guard = rows.steady_guard()
    looks = iter([guard.look(), structs.replace(guard.look(), steady_since_s=5.0)])
    monkeypatch.setattr(guard, "look", lambda: next(looks))
    assert expiry.expire_silent_members(guard=guard) == 0
    assert ConsumerGroup.objects.get().members.count() == 1


def test_one_group_that_fails_keeps_no_other_from_its_rebalance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows.world()
    rows.group("other")
    first, second = rebalance.pending_groups()
    real = rebalance.rebalance

    def failing(group_id: int) -> RebalanceResult:
        if group_id == first:
            raise MetadataUnavailable("locked")
        return real(group_id)

    monkeypatch.setattr(rebalance, "rebalance", failing)
    with pytest.raises(MetadataUnavailable):
        rebalance.rebalance_each([first, second])
    assert rebalance.pending_groups() == [first]
    assert rebalance.rebalance_each([10**6]) == 1  # deleted meanwhile
