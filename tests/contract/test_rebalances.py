"""Rebalances, limits and stops of a group over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from metadata.cache import snapshot
from tests.support.broker import Broker, problem
from tests.support.members import Member

pytestmark = pytest.mark.usefixtures("topic")


def member(broker: Broker, name: str, **more: Any) -> Member:
    """A member that has acquired what it owns."""
    made = Member.join(broker, name=name, topics=["orders"], **more)
    made.heartbeat()
    made.acquire()
    return made


def test_the_history_tells_cause_moves_and_pauses_newest_first(broker: Broker) -> None:
    first = member(broker, "ann")
    second = Member.join(broker, name="bob", topics=["orders"])
    first.heartbeat()
    first.heartbeat()
    second.heartbeat()
    second.acquire()

    listed = broker.ok("GET", "/groups/readers/rebalances?limit=1")
    older = broker.ok("GET", f"/groups/readers/rebalances?after={listed['next']}")

    (newest,) = listed["rebalances"]
    (move,) = newest["moves"]
    assert newest["cause"] == "bob joined"
    assert sorted(map(len, newest["assignment"].values())) == [1, 1]
    assert (move["topic"], move["from"], move["to"], move["queue"]) == (
        "orders",
        "ann",
        "bob",
        next(iter(second.owned)),
    )
    assert move["pause_ms"] >= 0
    assert older["rebalances"][0]["cause"].endswith("ann joined")
    assert older["next"] is None


def test_a_plan_is_only_a_plan_and_then_it_is_done(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = member(broker, "ann")
    # From here on the broker must not rebalance by itself, before it is asked to.
    monkeypatch.setattr("catmq_site.background.sweeps.PATIENCE_S", 3600.0)
    broker.ok("PATCH", "/groups/readers", {"deny_addresses": "127.0.0.0/8, ::1"})
    planned = broker.ok("POST", "/groups/readers/rebalance", {"dry_run": True})
    assert [(move["from"], move["to"], move["at_once"]) for move in planned["moves"]] == [
        ("ann", None, False)
    ] * 2
    assert len(broker.ok("GET", "/groups/readers/rebalances")["rebalances"]) == 1

    done = broker.ok("POST", "/groups/readers/rebalance", {})

    assert done == {**planned, "dry_run": False}
    assert held.heartbeat()["assigned"] == []
    (shown,) = broker.ok("GET", "/groups/readers")["members"]
    assert shown["active"] is False


def test_only_so_many_members_are_active_and_the_next_one_stands_by(broker: Broker) -> None:
    member(broker, "ann")
    broker.ok("PATCH", "/groups/readers", {"max_active_members": 1})
    standby = Member.join(broker, name="bob", topics=["orders"])
    assert standby.heartbeat()["assigned"] == []
    shown = broker.ok("GET", "/groups/readers")
    assert {one["name"]: one["active"] for one in shown["members"]} == {
        "ann": True,
        "bob": False,
    }
    assert shown["max_active_members"] == 1


def test_a_stopped_queue_gives_nothing_and_the_others_go_on(broker: Broker) -> None:
    reading = member(broker, "ann")
    stopped, other = reading.owned
    for queue in reading.owned:
        broker.ok(
            "POST", "/topics/orders/messages", {"messages": [{"body": "m", "queue": queue}]}
        )

    shown = broker.ok(
        "PATCH", "/groups/readers/subscriptions/orders", {"stopped_queues": [stopped]}
    )

    assert shown["stopped_queues"] == [stopped]
    told = reading.heartbeat()
    snapshot.refresh()
    assert {one["queue"]: one["stopped"] for one in told["assigned"]} == {
        stopped: True,
        other: False,
    }
    pulled = reading.pull(reading.position(stopped, 0), reading.position(other, 0))
    assert [(one["state"], len(one["messages"])) for one in pulled["queues"]] == [
        ("stopped", 0),
        ("ok", 1),
    ]
    broker.ok("PATCH", "/groups/readers/subscriptions/orders", {"stopped_queues": []})
    reading.heartbeat()
    snapshot.refresh()
    assert [
        one["state"] for one in reading.pull(reading.position(stopped, 0))["queues"]
    ] == ["ok"]


WRONG: list[tuple[str, str, Any, str]] = [
    (
        "PATCH",
        "/groups/readers/subscriptions/orders",
        {"stopped_queues": [10**9]},
        "stopped_queues",
    ),
    (
        "PATCH",
        "/groups/readers/subscriptions/orders",
        {"stopped_queues": "all"},
        "stopped_queues",
    ),
    ("PATCH", "/groups/readers", {"allow_addresses": "10.0.0.256"}, "allow_addresses"),
    ("PATCH", "/groups/readers", {"max_active_members": 0}, "max_active_members"),
    ("POST", "/groups/readers/rebalance", {"dry_run": "yes"}, "dry_run"),
    ("GET", "/groups/readers/rebalances?limit=0", None, "limit"),
    ("GET", "/groups/readers/rebalances?after=x", None, "after"),
]


@pytest.mark.parametrize("asked", WRONG, ids=lambda asked: f"{asked[1]} {asked[3]}")
def test_a_wrong_value_is_named_and_nothing_changes(
    broker: Broker, asked: tuple[str, str, Any, str]
) -> None:
    method, path, body, field = asked
    member(broker, "ann")
    before = broker.ok("GET", "/groups/readers")
    problem(broker.call(method, path, body), 400, "invalid", field)
    after = broker.ok("GET", "/groups/readers")
    assert after["subscriptions"] == before["subscriptions"]
    assert after["generation"] == before["generation"]


def test_an_unknown_group_has_no_history_and_is_not_rebalanced(broker: Broker) -> None:
    problem(broker.call("GET", "/groups/nobody/rebalances"), 404, "group_not_found")
    problem(broker.call("POST", "/groups/nobody/rebalance", {}), 404, "group_not_found")
