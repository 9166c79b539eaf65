"""What consumers and operators get wrong about groups: a clear answer, and nothing has
changed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command

from metadata.membership import rebalance
from tests.support import tampering
from tests.support.broker import Broker, problem
from tests.support.members import Member, reader
from tests.support.waiting import until

# models whose rows change by themselves
RESTLESS = ("Heartbeat", "Lease", "Broker", "BrokerProcess")


def everything(*queues: int) -> dict[str, Any]:
    """All rows of metadata, and the reader rows of some queues."""
    until(lambda: not rebalance.pending_groups())
    models = [
        one
        for one in apps.get_app_config("metadata").get_models()
        if one.__name__ not in RESTLESS
    ]
    rows = {
        model.__name__: list(model._default_manager.order_by("pk").values())
        for model in models
    }
    return rows | {"readers": [tampering.readers(queue) for queue in queues]}


@contextmanager
def nothing_changes(*queues: int) -> Iterator[None]:
    """Fails when a row is another after the block than before."""
    before = everything(*queues)
    yield
    after = everything(*queues)
    assert {name for name in before if before[name] != after[name]} == set()


@pytest.fixture
def foreign(broker: Broker, queue: int) -> int:
    """A queue that another group reads, whose member holds it."""
    made = broker.ok("POST", "/topics", {"name": "private", "queues": 1})
    other = Member.join(broker, "others", name="o1", topics=["private"])
    other.heartbeat()
    other.acquire()
    return int(made["queues"][0]["queue"])


def register(broker: Broker, group: str = "readers", **more: Any) -> Any:
    body = {"name": "c9", "incarnation": str(uuid.uuid4()), **more}
    return broker.call("POST", f"/groups/{group}/consumers", body)


def test_a_heartbeat_with_a_made_up_epoch_is_told_the_true_one(
    broker: Broker, queue: int
) -> None:
    member = reader(broker)
    member.heartbeat()
    true = dict(member.owned)
    with nothing_changes(queue):
        for made_up in (0, true[queue] - 1, true[queue] + 1, 2**63 - 1):
            member.owned = {queue: made_up}
            assert member.heartbeat()["revoked"] == []
            assert member.owned == true


def test_a_heartbeat_with_a_queue_of_another_group_is_asked_to_give_it_up(
    broker: Broker, queue: int, foreign: int
) -> None:
    member = reader(broker)
    member.heartbeat()
    with nothing_changes(queue, foreign):
        member.owned = {**member.owned, foreign: 1, 999_999: 1}
        told = member.heartbeat()
        assert told["revoked"] == [foreign, 999_999]
        assert [one["queue"] for one in told["assigned"]] == [queue]


def test_pull_acquire_and_commit_with_a_made_up_epoch_are_fenced(
    broker: Broker, queue: int
) -> None:
    member = reader(broker)
    true = member.owned[queue]
    with nothing_changes(queue):
        for made_up in (0, true - 1, true + 1, 2**63 - 1):
            member.owned = {queue: made_up}
            assert (
                member.pull(member.position(queue, 0), wait_ms=5000)["queues"][0]["state"]
                == "fenced"
            )
            assert member.acquire() == [{"queue": queue, "state": "fenced", "offset": None}]
            assert member.commit(member.position(queue, 0)) == ["fenced"]


def test_pull_acquire_and_commit_of_a_queue_of_another_group_are_fenced(
    broker: Broker, queue: int, foreign: int
) -> None:
    member = reader(broker)
    with nothing_changes(queue, foreign):
        for epoch in {epoch for _, _, epoch, _, _ in tampering.readers(foreign)}:
            member.owned = {foreign: epoch}
            assert (
                member.pull(member.position(foreign, 0), wait_ms=5000)["queues"][0]["state"]
                == "fenced"
            )
            assert member.acquire() == [
                {"queue": foreign, "state": "fenced", "offset": None}
            ]
            assert member.commit(member.position(foreign, 0)) == ["fenced"]


def test_an_id_that_has_ended_is_gone(broker: Broker, queue: int) -> None:
    member = reader(broker)
    broker.ok("DELETE", member.path)
    reader(broker, name="c2")
    position = member.position(queue, 0)
    with nothing_changes(queue):
        beat = {
            "generation": member.generation,
            "owned": [{"queue": queue, "epoch": member.owned[queue]}],
        }
        problem(broker.call("POST", f"{member.path}/heartbeat", beat), 410, "expired")
        problem(
            broker.call("POST", f"{member.path}/acquire", {"queues": beat["owned"]}),
            410,
            "expired",
        )
        assert member.pull(position, wait_ms=5000)["queues"][0]["state"] == "fenced"
        assert member.commit(position) == ["fenced"]
        broker.ok("DELETE", member.path)


def test_an_id_of_another_key_is_forbidden(broker: Broker, queue: int) -> None:
    member = reader(broker)
    thief = broker.as_key({"consume": ["*"]})
    held = [{"queue": queue, "epoch": member.owned[queue]}]
    calls = {
        "heartbeat": {"generation": member.generation, "owned": []},  # as if it had let go
        "acquire": {"queues": held},
        "pull": {"generation": 0, "queues": [{**held[0], "offset": 0}]},
        "commit": {"offsets": [{**held[0], "offset": 0}]},
    }
    with nothing_changes(queue):
        for call, body in calls.items():
            problem(thief.call("POST", f"{member.path}/{call}", body), 403, "forbidden")
        problem(thief.call("DELETE", member.path), 403, "forbidden")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            {"mode": "broadcasting", "instance_id": "one"},
            "has mode clustering, this consumer asks for broadcasting",
        ),
        (
            {"session_timeout_ms": 6000},
            "has session_timeout_ms 5000, this consumer asks for 6000",
        ),
        (
            {"mode": "clustering", "session_timeout_ms": 15_000},
            "session_timeout_ms 5000, this consumer asks for 15000",
        ),
    ],
)
def test_a_registration_that_contradicts_its_group_is_refused_with_both_values(
    broker: Broker, queue: int, asked: dict[str, Any], words: str
) -> None:
    broker.ok("POST", "/groups", {"name": "readers", "session_timeout_ms": 5000})
    with nothing_changes(queue):
        for more in ({}, {"topics": ["single"]}):
            found = problem(register(broker, **asked, **more), 409, "group_settings_differ")
            assert words in found["detail"]
    assert register(broker, mode="clustering", session_timeout_ms=5000).status_code == 201


def test_a_consumer_of_a_broadcasting_group_must_name_its_instance(
    broker: Broker, queue: int
) -> None:
    broker.ok("POST", "/groups", {"name": "readers", "mode": "broadcasting"})
    with nothing_changes(queue):
        for more in (
            {},
            {"mode": "broadcasting"},
            {"topics": ["single"]},
            {"instance_id": ""},
        ):
            problem(register(broker, **more), 400, "invalid", "instance_id")
        new = {"mode": "broadcasting", "topics": ["single"]}
        problem(register(broker, "fresh", **new), 400, "invalid", "instance_id")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"mode": "anycast"}, "mode"),
        ({"mode": ""}, "mode"),
        ({"mode": 1}, "mode"),
        ({"session_timeout_ms": 1999}, "session_timeout_ms"),
        ({"session_timeout_ms": 300_001}, "session_timeout_ms"),
        ({"session_timeout_ms": "5000"}, "session_timeout_ms"),
    ],
)
def test_settings_that_no_group_can_have_are_named(
    broker: Broker, queue: int, wrong: dict[str, Any], field: str
) -> None:
    with nothing_changes(queue):
        answer = register(broker, "fresh", topics=["single"], instance_id="one", **wrong)
        problem(answer, 400, "invalid", field)


def test_a_broadcasting_group_is_not_reset_like_a_shared_one(
    broker: Broker, queue: int
) -> None:
    for instance in ("one", "two"):
        Member.join(broker, topics=["single"], mode="broadcasting", instance_id=instance)
    broker.ok("PATCH", "/groups/readers", {"stopped": True})
    reset = {"topic": "single", "to": "latest"}
    with nothing_changes(queue):
        for more in ({}, {"instance": "three"}, {"dry_run": True}, {"queues": [queue]}):
            answer = broker.call("PATCH", "/groups/readers/offsets", {**reset, **more})
            found = problem(answer, 400, "invalid", "instance")
            assert "one, two" in found["detail"]


def test_a_shared_group_is_not_reset_like_a_broadcasting_one(
    broker: Broker, queue: int
) -> None:
    reader(broker)
    broker.ok("PATCH", "/groups/readers", {"stopped": True})
    with nothing_changes(queue):
        reset = {"topic": "single", "to": "latest", "instance": "one"}
        problem(
            broker.call("PATCH", "/groups/readers/offsets", reset),
            400,
            "invalid",
            "instance",
        )


def test_a_rebalance_of_an_unknown_group_touches_none(broker: Broker, queue: int) -> None:
    reader(broker)
    with nothing_changes(queue):
        for names in (["nope"], ["readers", "nope"], []):
            with pytest.raises(CommandError) as caught:
                call_command("rebalance", *names)
            assert caught.value.returncode == 1
            assert ("nope does not exist" in str(caught.value)) == bool(names)
        problem(broker.call("POST", "/groups/nope/rebalance", {}), 404, "group_not_found")
