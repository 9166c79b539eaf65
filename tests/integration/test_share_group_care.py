"""Share groups on real nodes as operators see them: members, alarms, the auditor, upgrades,
status.
"""

from __future__ import annotations

from typing import Any

import pytest

from messagestore import verify
from messagestore.consume import group_lag
from messagestore.inspect import delivery_status
from messagestore.nodes import promotion, registry, upgrade
from messagestore.pool import node_pools
from messagestore.retries import lost_leases
from messagestore.shares import upkeep
from messagestore.tables import node_sql, promotion_sql
from messagestore.tables.shares import run_sql
from metadata.brokers import discovery
from metadata.cache import snapshot
from metadata.errors import Conflict, Invalid, NodeUnavailable
from metadata.groups import groups
from metadata.membership import consumers, ended_share_members
from metadata.models import ConsumerGroup, QueueOffset
from metadata.monitoring import lag_checks
from metadata.release import VERSION
from tests.support import restoring
from tests.support.leasing import (
    ME,
    committed,
    end_leases,
    forget,
    lease,
    made,
    member,
    offsets,
    report,
    runs,
    send,
)
from tests.support.tampering import declare_gap, plant, raise_low, remove

TEN = [str(n) for n in range(10)]


@pytest.fixture
def queue(node: str) -> int:
    """The only queue of topic `orders`."""
    return made()[0]


def test_members_that_leave_expire_or_are_replaced_give_their_runs_back(queue: int) -> None:
    ended_share_members.take_ended()
    one = member()
    send(*TEN)
    assert offsets(lease(one, max_messages=2)) == [0, 1]
    consumers.leave(consumer=one, actor=ME)
    assert upkeep.free_departed() == 1
    two = member("two")
    assert offsets(lease(two, max_messages=2)) == [0, 1]
    member("two")  # a new process under its name
    assert upkeep.free_departed() == 1
    three = member("three")
    forget()
    assert offsets(lease(three, max_messages=2)) == [0], "for the third time, so alone"


def test_nobody_is_rebalanced_and_the_snapshot_counts_members(queue: int) -> None:
    for name in "abc":
        member(name)
    row = ConsumerGroup.objects.get(name="mails")
    assert snapshot.find_group("mails").member_count == 3
    assert not QueueOffset.objects.filter(group=row, owner__isnull=False).exists()
    assert row.rebalance_wanted == row.rebalance_done + 1, "one mark, of the subscription"


def test_the_auditor_finds_wrong_leases_and_nothing_in_good_ones(queue: int) -> None:
    one = member(run_messages=4)
    send(*TEN)
    leased = lease(one)
    assert report(one, leased[0], finished=[(1, 2)], release=[2]) == "ok"
    (good,) = verify.verify(topics=["orders"], actor=ME).queues
    assert good.findings == []
    plant(queue, "UPDATE share_position SET next_offset = 50")
    (bad,) = verify.verify(topics=["orders"], actor=ME).queues
    assert {finding.kind for finding in bad.findings} == {"leases_wrong"}
    plant(
        queue,
        "UPDATE share_position SET next_offset = 10",
        "UPDATE share_run SET done = NULL",
    )
    (bad,) = verify.verify(topics=["orders"], actor=ME).queues
    assert ["in another run" in finding.what for finding in bad.findings] == [True]


def test_an_alarm_tells_of_a_share_group_without_members(queue: int) -> None:
    one = member()
    send(*TEN)
    registry.note_heads()
    registry.note_heads()
    group_lag.record()
    assert lag_checks.find_subscriptions_without_consumer().active == {}
    consumers.leave(consumer=one, actor=ME)
    assert [*lag_checks.find_subscriptions_without_consumer().active] == ["mails/orders"]


def test_a_node_with_a_share_group_refuses_older_releases(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = discovery.BrokerView("b1", "http://b1", "in", True, "0.0.9", 0, 0, None)
    monkeypatch.setattr(discovery._memory, "views", (lives,))
    with pytest.raises(Conflict, match=r"older than CatMQ .*: b1 \(0\.0\.9\)"):
        member()
    monkeypatch.setattr(discovery._memory, "views", ())
    member()
    with node_pools.node_of(queue).reading() as session:
        assert promotion_sql.read_schema(session).min_release == VERSION


def test_a_node_of_an_earlier_schema_gets_the_tables_by_an_upgrade(queue: int) -> None:
    plant(queue, "DROP TABLE share_run", "DROP TABLE share_position")
    with node_pools.node_of(queue).reading() as session:
        assert [one.table for one in node_sql.pending_changes(session)] == ["share_run"]
    (done,) = upgrade.upgrade(actor=ME)
    assert [one.table for one in done.changes] == ["share_run"]
    one = member()
    send(*TEN)
    assert offsets(lease(one)) == list(range(10))


@pytest.mark.one_engine
@pytest.mark.parametrize(
    "name", ["max_active_members", "allow_addresses", "deny_addresses"]
)
def test_limits_on_owners_are_refused(name: str, queue: int) -> None:
    value: Any = 1 if name == "max_active_members" else "10.0.0.0/8"
    with pytest.raises(Invalid, match="has no owners of queues"):
        groups.create(name="g", mode="share", settings={name: value}, actor=ME)


def test_the_delivery_status_of_a_message_is_read_once_it_is_finished(queue: int) -> None:
    one = member()
    send("a", "b", "c", "d")
    (run,) = lease(one, max_messages=3)
    assert report(one, run, finished=[(1, 2)]) == "ok"

    def states() -> list[str]:
        told = (
            delivery_status.trace_message(
                topic="orders", queue=queue, offset=offset, stored_at_ms=0, actor=ME
            )
            for offset in range(4)
        )
        return [one.state for (one,) in told]

    assert states() == ["unread", "read", "unread", "unread"], "the committed offset is 0"
    assert report(one, run, whole=True) == "ok"
    assert states() == ["read", "read", "read", "unread"]


def in_flight(queue: int) -> tuple[int | None, int | None]:
    """Lag of the group in a queue, and its messages in runs."""
    (row,) = group_lag.group_offsets(group="mails", actor=ME)
    return row.lag, row.in_flight


def test_leased_messages_that_retention_took_go_without_a_member(queue: int) -> None:
    one = member()
    send(*TEN)
    (run,) = lease(one, max_messages=4)
    end_leases(run)
    raise_low(queue, 6)
    remove(queue, *range(6))
    assert in_flight(queue) == (8, 4)
    forget()
    lost_leases.sweep()
    assert (in_flight(queue), runs(queue)) == ((4, 0), [])
    assert report(one, run, whole=True) == "gone"
    assert offsets(lease(one)) == [6, 7, 8, 9]


def test_what_retention_left_of_a_leased_run_stays(queue: int) -> None:
    one = member()
    send(*TEN)
    (run,) = lease(one)
    end_leases(run)
    raise_low(queue, 6)
    forget()
    lost_leases.sweep()
    (left,) = runs(queue)
    assert ([offset for offset in range(10) if left.has(offset)], in_flight(queue)) == (
        [6, 7, 8, 9],
        (4, 4),
    )
    assert report(one, run, whole=True) == "ok", "nobody else has it"
    assert (committed(queue), runs(queue)) == (10, [])


def test_what_a_member_has_stays_its_own_whatever_retention_took(queue: int) -> None:
    one = member()
    send(*TEN)
    (run,) = lease(one, max_messages=4)
    raise_low(queue, 6)
    remove(queue, *range(6))
    forget()
    lost_leases.sweep()
    assert in_flight(queue) == (8, 4), "it is at work on them"
    assert report(one, run, finished=[(0, 2)]) == "ok"
    assert report(one, run, whole=True) == "ok"
    assert in_flight(queue) == (4, 0)


def test_leased_messages_in_a_declared_gap_go_without_a_member(queue: int) -> None:
    one = member()
    send(*TEN)
    (run,) = lease(one)
    end_leases(run)
    remove(queue, 3, 4)
    declare_gap(queue, 3, 5)
    forget()
    lost_leases.sweep()
    (left,) = runs(queue)
    assert [offset for offset in range(10) if not left.has(offset)] == [3, 4]
    assert in_flight(queue) == (8, 8)


def test_a_run_that_is_taken_over_meanwhile_is_not_changed(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = member(), member("two")
    send(*TEN)
    (run,) = lease(one, max_messages=5)
    end_leases(run)
    raise_low(queue, 2)
    select, taken = run_sql.select_ended_below, []

    def overtaken(*args: Any, **kwargs: Any) -> Any:
        found = select(*args, **kwargs)
        taken.extend(lease(two))
        return found

    monkeypatch.setattr(run_sql, "select_ended_below", overtaken)
    lost_leases.sweep()
    (again,) = taken
    assert runs(queue)[0].done == again.run.done
    assert report(two, again, whole=True) == "ok"


def test_leased_messages_that_a_node_lost_go_without_a_member(queue: int) -> None:
    one = member()
    send(*TEN)
    (run,) = lease(one, max_messages=8)
    restoring.lose_tail(queue, 6)
    with pytest.raises(NodeUnavailable):
        send("x")
    promotion.adopt(name="main", actor=ME)
    snapshot.refresh()
    end_leases(run)
    lost_leases.sweep()
    (left,) = runs(queue)
    assert ([offset for offset in range(10) if left.has(offset)], in_flight(queue)) == (
        [*range(6)],
        (6, 6),
    )
