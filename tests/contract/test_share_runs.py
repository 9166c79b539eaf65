"""Operators look at the runs of a share group, end a lease, and see how far the group is."""

from __future__ import annotations

import pytest

from metadata.cache import snapshot
from metadata.models import AuditLog
from tests.support.broker import Broker, problem
from tests.support.members import Member
from tests.support.sharing import ShareMember, about, bodies
from tests.support.waiting import until


@pytest.fixture
def member(broker: Broker, queue: int) -> ShareMember:
    """A member that has leased two runs of two messages each, of five."""
    joined = ShareMember.join(broker, run_messages=2)
    broker.ok(
        "POST",
        "/topics/single/messages",
        {"messages": [{"body": text} for text in "abcde"]},
    )
    assert bodies(joined.lease(max_messages=4)) == list("abcd")
    return joined


def test_runs_tell_who_has_what(broker: Broker, queue: int, member: ShareMember) -> None:
    told = broker.ok("GET", "/groups/mails/share/runs")
    first, second = told["runs"]
    assert first.pop("lease_left_ms") > 0
    assert first == {
        "topic": "single",
        "queue": queue,
        "number": 0,
        "first": 0,
        "end": 2,
        "owner": "s1",
        "deliveries": 1,
        "messages": 2,
        "finished": 0,
    }
    assert (second["first"], told["away"]) == (2, [])
    assert (
        len(broker.ok("GET", f"/groups/mails/share/runs?queue={queue}&limit=1")["runs"])
        == 1
    )
    problem(
        broker.call("GET", "/groups/mails/share/runs?queue=10000"), 404, "queue_not_found"
    )


def test_a_lease_that_is_ended_by_hand_is_delivered_again_and_audited(
    broker: Broker, queue: int, member: ShareMember
) -> None:
    told = broker.ok(
        "POST", "/groups/mails/share/runs/release", {"queue": queue, "first": 2}
    )
    assert told == {"released": 1}
    runs = {
        run["first"]: run for run in broker.ok("GET", "/groups/mails/share/runs")["runs"]
    }
    assert (runs[2]["owner"], runs[2]["lease_left_ms"] <= 0) == (None, True)
    other = ShareMember.join(broker, name="s2")
    assert bodies(until(lambda: other.lease())) == ["c", "d"]
    row = AuditLog.objects.get(verb="release")
    assert (row.kind, row.name, row.after) == (
        "group",
        "mails",
        {"queue": queue, "first": 2},
    )
    again = broker.ok(
        "POST", "/groups/mails/share/runs/release", {"queue": queue, "first": 50}
    )
    assert again == {"released": 0}


def test_the_lag_counts_what_is_unfinished(
    broker: Broker, queue: int, member: ShareMember
) -> None:
    (row,) = broker.ok("GET", "/groups/mails/offsets")["queues"]
    assert (row["lag"], row["in_flight"], row["redelivered"]) == (5, 4, 0)
    assert 0 <= row["oldest_lease_ms"] < 30_000
    broker.ok("POST", "/groups/mails/share/runs/release", {"queue": queue, "first": 0})
    (run, *_) = until(lambda: member.lease(max_messages=1))
    assert member.report(about(run, finished=[[0, 1]])) == ["ok"]
    (row,) = broker.ok("GET", "/groups/mails/offsets")["queues"]
    assert (row["lag"], row["in_flight"], row["redelivered"]) == (4, 3, 1)


def test_other_groups_have_no_runs(broker: Broker, queue: int) -> None:
    Member.join(broker, topics=["single"])
    refused = broker.call("GET", "/groups/readers/share/runs")
    assert (
        "only share groups lease messages"
        in problem(refused, 409, "group_settings_differ")["detail"]
    )
    (row,) = until(lambda: broker.ok("GET", "/groups/readers/offsets")["queues"])
    assert row["in_flight"] is None


def test_a_group_that_unsubscribes_leaves_no_runs_behind(
    broker: Broker, queue: int, member: ShareMember
) -> None:
    (group, old) = (
        snapshot.find_group("mails"),
        broker.ok("GET", "/groups/mails/share/runs")["runs"],
    )
    assert len(old) == 2
    broker.ok("DELETE", "/groups/mails/subscriptions/single")
    until(lambda: snapshot.current().subscriptions_of(group.id) == ())
    broker.ok("POST", "/groups/mails/subscriptions", {"topic": "single"})
    assert broker.ok("GET", "/groups/mails/share/runs")["runs"] == []
    assert bodies(until(lambda: member.lease(max_messages=4))) == list("abcd")
