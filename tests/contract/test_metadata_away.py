"""Answers to members, and their rights, while heartbeats cannot be recorded."""

from __future__ import annotations

from typing import Any

import pytest

from metadata.cache import snapshot
from metadata.errors import MetadataUnavailable
from metadata.groups import ownership
from metadata.membership import heartbeats
from tests.support.broker import Broker, problem
from tests.support.members import Member
from tests.support.waiting import until


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function after which metadata counts as away."""

    def refuse(**_: object) -> dict[int, int]:
        raise MetadataUnavailable("away")

    def leave() -> None:
        snapshot.refresh()  # as a loop of the broker did until then
        monkeypatch.setattr(heartbeats, "SILENT_S", -1.0)
        monkeypatch.setattr(ownership, "check_owned", refuse)

    return leave


def refused(member: Member) -> dict[str, Any]:
    """The problem that its heartbeat is answered with."""
    owned = [{"queue": queue, "epoch": epoch} for queue, epoch in member.owned.items()]
    body = {"generation": member.generation, "owned": owned}
    answer = member.broker.call("POST", f"{member.path}/heartbeat", body)
    return problem(answer, 503, "metadata_unavailable")


def test_a_queue_that_was_just_handed_over_is_told_and_acquired_by_its_node_alone(
    broker: Broker, topic: str, away: Any
) -> None:
    one = Member.join(broker, topics=[topic])
    one.heartbeat()
    one.acquire()
    former = dict(one.owned)
    two = Member.join(broker, name="c2", topics=[topic])
    until(lambda: one.heartbeat()["revoked"])
    one.heartbeat()
    (queue,) = former.keys() - one.owned.keys()

    away()
    (told,) = until(lambda: refused(two)["assigned"])

    assert (told["topic"], told["queue"], told["stopped"]) == (topic, queue, False)
    assert told["epoch"] > former[queue]
    two.owned = {queue: told["epoch"]}
    (acquired,) = two.acquire()
    assert (acquired["state"], acquired["offset"]) == ("ok", 0)
    assert two.pull(two.position(queue, 0))["queues"][0]["state"] == "ok"
    one.owned = former
    states = [
        one.pull(one.position(each, 0))["queues"][0]["state"] for each in sorted(former)
    ]
    assert states == ["fenced" if each == queue else "ok" for each in sorted(former)]


def test_a_heartbeat_that_is_not_recorded_says_what_its_member_owns_and_how_it_is_to_be_read(
    broker: Broker, topic: str, away: Any
) -> None:
    one = Member.join(broker, topics=[topic])
    one.heartbeat()
    one.acquire()
    away()

    told = refused(one)

    assert {each["queue"]: each["epoch"] for each in told["assigned"]} == one.owned
    assert told["subscriptions"].keys() == {topic}
    assert told["metadata_silent_ms"] >= 0
    assert {each["state"] for each in one.acquire()} == {"ok"}


def test_what_no_node_knows_as_a_members_is_not_acquired_without_metadata(
    broker: Broker, topic: str, away: Any
) -> None:
    one = Member.join(broker, topics=[topic])
    one.heartbeat()
    one.acquire()
    away()
    one.owned = {queue: epoch + 1 for queue, epoch in one.owned.items()}
    queues = [{"queue": queue, "epoch": epoch} for queue, epoch in one.owned.items()]
    answer = broker.call("POST", f"{one.path}/acquire", {"queues": queues})
    problem(answer, 503, "metadata_unavailable")
