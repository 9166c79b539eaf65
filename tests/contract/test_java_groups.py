"""Java clients with several groups: one membership that is gone stops none of the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from metadata import actors
from metadata.membership import consumers, java_beats, java_members
from tests.support.broker import Broker
from tests.support.java_client import JavaClient, Timing
from tests.support.waiting import until

GROUPS = ("kept", "lost")
Clients = Callable[[], JavaClient]


@pytest.fixture(autouse=True)
def groups(java_let_in: None, broker: Broker, queue: int) -> None:
    """Two groups that read topic `single`."""
    for group in GROUPS:
        broker.ok("POST", "/groups", {"name": group})
        broker.ok(
            "POST",
            f"/groups/{group}/subscriptions",
            {"topic": "single", "start": "earliest"},
        )


@pytest.fixture
def got() -> list[tuple[str, str]]:
    """(group, body) of what clients handled."""
    return []


@pytest.fixture
def client(broker: Broker, got: list[tuple[str, str]]) -> Iterator[Clients]:
    """A function that starts a client in both groups; all are closed at the end."""
    made: list[JavaClient] = []

    def handle(message: dict[str, Any], queue: dict[str, Any]) -> bool:
        got.append((queue["consumerGroupName"], message["body"]))
        return True

    def start() -> JavaClient:
        named = {group: ["single"] for group in GROUPS}
        made.append(
            JavaClient(
                broker.url,
                named,
                handle,
                timing=Timing(commit=0.1, first_beat=0.2, beat=0.5),
            )
        )
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.close()


def send(broker: Broker, body: str) -> None:
    broker.ok("POST", "/topics/single/messages", {"messages": [{"body": body}]})


def lose(client: JavaClient, group: str) -> None:
    """End one membership of a client."""
    (member,) = [
        one for one in java_members.memberships_of_client(client.id) if one.group == group
    ]
    consumers.leave(consumer=member.consumer, actor=actors.job("test"))


def test_a_client_that_lost_one_membership_joins_all_its_groups_anew(
    broker: Broker, client: Clients, got: list[tuple[str, str]]
) -> None:
    one = client()
    send(broker, "a")
    until(lambda: sorted(got) == [("kept", "a"), ("lost", "a")])
    before, begun = one.id, time.monotonic()
    lose(one, "lost")
    until(lambda: one.id != before, limit_s=30)
    assert time.monotonic() - begun < 20, (
        "its heartbeat said so only after its other membership had expired"
    )
    send(broker, "b")
    until(lambda: {("kept", "b"), ("lost", "b")} <= set(got), limit_s=30)


def test_a_deleted_group_stops_none_of_the_others(
    broker: Broker,
    client: Clients,
    got: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(java_members, "JOIN_S", 0.0)
    one = client()
    send(broker, "a")
    until(lambda: len(got) == 2)
    lose(one, "lost")
    broker.ok("DELETE", "/groups/lost?confirm=lost")
    until(lambda: not one.known["lost"].queues, limit_s=30)
    send(broker, "b")
    until(lambda: ("kept", "b") in got)
    asked = one.calls["getConsumerGroupPolling"]
    broker.ok("PATCH", "/groups/kept/subscriptions/single", {"handler_batch": 5})
    until(
        lambda: any(
            queue["consumerBatchSize"] == 5 for queue in one.known["kept"].queues.values()
        )
    )
    assert one.calls["getConsumerGroupPolling"] - asked < 20, (
        "it was told the same again and again"
    )
    before = one.id
    # as after an outage: it joins anew, and still names the deleted group
    lose(one, "kept")
    until(lambda: one.id != before, limit_s=30)
    send(broker, "c")
    until(lambda: ("kept", "c") in got, limit_s=30)
    broker.ok("POST", "/groups", {"name": "lost"})
    broker.ok("POST", "/groups/lost/subscriptions", {"topic": "single", "start": "latest"})
    until(lambda: one.known["lost"].running and one.known["lost"].queues, limit_s=30)
    send(broker, "d")
    until(lambda: ("lost", "d") in got, limit_s=30)


def test_a_group_that_never_was_stops_a_client_at_its_start(broker: Broker) -> None:
    wrong = JavaClient(
        broker.url, {"kept": ["single"], "lsot": ["single"]}, lambda message, queue: True
    )
    with pytest.raises(AssertionError, match="lsot"):
        wrong.start()


def test_a_member_that_was_told_something_or_left_is_looked_at_in_full(
    client: Clients,
) -> None:
    one = client()
    kept, lost = java_members.memberships_of_client(one.id)
    members = [kept.consumer.member_id, lost.consumer.member_id]
    java_beats.note({kept.consumer.member_id: kept.version, lost.consumer.member_id: None})
    java_beats.flush()
    assert not java_beats.needs_full_check(members)
    java_beats.note({kept.consumer.member_id: kept.version - 1})
    java_beats.flush()
    assert java_beats.needs_full_check(members[:1])
    assert not java_beats.needs_full_check(members[1:])
    lose(one, "lost")
    java_beats.note({lost.consumer.member_id: None})
    java_beats.flush()
    assert java_beats.needs_full_check(members[1:])
