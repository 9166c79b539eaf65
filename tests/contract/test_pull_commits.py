"""Commits that come with a pull: fenced like a commit, before the read and before the wait."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from brokerapi.http import draining, metrics
from messagestore.consume import positions
from metadata import actors
from metadata.cache import snapshot
from metadata.config import config
from metadata.nodes import node_rows
from tests.contract.test_long_poll import LONG_MS, quick, waiting
from tests.support.broker import Broker, problem
from tests.support.members import Member, reader
from tests.support.waiting import until


def send(broker: Broker, topic: str, *queues: int) -> None:
    """Sends a message to each of the queues."""
    messages = [{"body": "x", "queue": queue} for queue in queues]
    broker.ok("POST", f"/topics/{topic}/messages", {"messages": messages})


def committed(broker: Broker, group: str = "readers") -> dict[int, int]:
    """The committed offset of each queue, as the node has it."""
    queues = broker.ok("GET", f"/groups/{group}/offsets")["queues"]
    return {entry["queue"]: entry["committed"] for entry in queues}


def states(answer: Any) -> list[tuple[int, str]]:
    """The results of the commits of a pull."""
    return [(result["queue"], result["state"]) for result in answer["commit"]]


@pytest.fixture
def member(broker: Broker, queue: int) -> Member:
    """Owns the queue, which has three messages."""
    send(broker, "single", queue, queue, queue)
    return reader(broker)


def test_a_pull_commits_and_reads(broker: Broker, queue: int, member: Member) -> None:
    answer = member.pull(member.position(queue, 2), commit=[member.position(queue, 2)])
    assert states(answer) == [(queue, "ok")]
    assert [message["offset"] for message in answer["queues"][0]["messages"]] == [2]
    assert committed(broker) == {queue: 2}
    # The same bytes again, as after a lost answer: the same answer, and nothing is lowered.
    member.commit(member.position(queue, 3))
    again = member.pull(member.position(queue, 2), commit=[member.position(queue, 2)])
    assert again == answer
    assert committed(broker) == {queue: 3}


def test_a_pull_without_commits_has_no_results(queue: int, member: Member) -> None:
    assert "commit" not in member.pull(member.position(queue, 0))
    assert "commit" not in member.pull(member.position(queue, 0), commit=[])


def test_the_commit_is_stored_while_the_pull_waits(
    broker: Broker, queue: int, member: Member
) -> None:
    future = waiting(
        lambda: member.pull(
            member.position(queue, 3), commit=[member.position(queue, 3)], wait_ms=LONG_MS
        )
    )
    assert committed(broker) == {queue: 3}
    send(broker, "single", queue)
    answer = quick(future)
    assert states(answer) == [(queue, "ok")]
    assert len(answer["queues"][0]["messages"]) == 1


def test_commits_are_counted_like_those_of_a_commit(
    broker: Broker, queue: int, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[tuple[int, str, int]] = []
    count = metrics.count_committed

    def noted(group_id: int, results: Any) -> None:
        counted.extend((r.queue, r.state, r.handled) for r in results)
        count(group_id, results)

    monkeypatch.setattr(metrics, "count_committed", noted)
    before = metrics.COMMITTED._value.get()
    member.pull(commit=[member.position(queue, 2)])
    member.pull(commit=[member.position(queue, 9)])
    assert counted == [(queue, "ok", 2), (queue, "out_of_range", 0)]
    assert metrics.COMMITTED._value.get() == before + 1


@pytest.mark.parametrize("offset", [0, 1])
def test_an_offset_below_the_committed_one_changes_nothing(
    broker: Broker, queue: int, member: Member, offset: int
) -> None:
    member.commit(member.position(queue, 2))
    answer = member.pull(commit=[member.position(queue, offset)])
    assert states(answer) == [(queue, "ok")]
    assert committed(broker) == {queue: 2}


def test_what_is_not_stored_is_told_by_queue_and_at_once(
    broker: Broker, queue: int, member: Member, topic: str
) -> None:
    foreign = broker.ok("GET", f"/topics/{topic}")["queues"][0]["queue"]
    stale = {"queue": queue, "epoch": member.owned[queue] - 1, "offset": 1}
    others = [{"queue": other, "epoch": 1, "offset": 0} for other in (foreign, 999_999)]
    # A pull with nothing to read ends at once all the same: its client must learn of this.
    answer = member.pull(
        member.position(queue, 3), commit=[*others, stale], wait_ms=LONG_MS
    )
    assert states(answer) == [
        (foreign, "fenced"),
        (999_999, "fenced"),
        (queue, "fenced"),
    ]
    assert answer["queues"][0]["state"] == "ok"
    assert committed(broker) == {queue: 0}
    answer = member.pull(
        member.position(queue, 3), commit=[member.position(queue, 4)], wait_ms=LONG_MS
    )
    assert states(answer) == [(queue, "out_of_range")]
    assert committed(broker) == {queue: 0}


def test_a_fenced_commit_leaves_the_other_queues_to_be_read(
    broker: Broker, topic: str
) -> None:
    member = Member.join(broker, topics=[topic])
    member.heartbeat()
    member.acquire()
    first, second = sorted(member.owned)
    send(broker, topic, first, second, second)
    former_epoch = member.owned[first]
    # Another process under the same name: from its acquire on, the former one is fenced.
    successor = Member.join(broker, topics=[topic])
    successor.heartbeat()
    queues = [{"queue": first, "epoch": successor.owned[first]}]
    broker.ok("POST", f"{successor.path}/acquire", {"queues": queues})
    assert successor.owned[first] > former_epoch

    answer = member.pull(
        member.position(first, 0),
        member.position(second, 1),
        commit=[member.position(first, 1), member.position(second, 1)],
    )
    assert states(answer) == [(first, "fenced"), (second, "ok")]
    assert [(queue["state"], len(queue["messages"])) for queue in answer["queues"]] == [
        ("fenced", 0),
        ("ok", 1),
    ]
    assert committed(broker) == {first: 0, second: 1}


def test_a_rebalance_between_fetch_and_commit_is_fenced(broker: Broker, topic: str) -> None:
    first = Member.join(broker, topics=[topic])
    first.heartbeat()
    first.acquire()
    queues = sorted(first.owned)
    send(broker, topic, *queues)
    former = dict(first.owned)
    second = Member.join(broker, name="c2", topics=[topic])
    until(
        lambda: (
            len(first.heartbeat()["assigned"]) == len(second.heartbeat()["assigned"]) == 1
        )
    )
    second.acquire()
    (moved,) = second.owned
    (kept,) = first.owned
    answer = first.pull(
        first.position(kept, 0),
        {"queue": moved, "epoch": former[moved], "offset": 0},
        commit=[
            {"queue": moved, "epoch": former[moved], "offset": 1},
            first.position(kept, 1),
        ],
    )
    assert states(answer) == [(moved, "fenced"), (kept, "ok")]
    by_queue = {queue["queue"]: queue for queue in answer["queues"]}
    assert by_queue[moved]["state"] == "fenced"
    assert len(by_queue[kept]["messages"]) == 1
    assert committed(broker) == {moved: 0, kept: 1}


def test_a_node_that_is_away_leaves_the_others_to_be_committed_and_read(
    broker: Broker, queue: int, member: Member, make_node: Callable[..., str]
) -> None:
    make_node("other")
    made = broker.ok("POST", "/topics", {"name": "far", "queues": 1, "node": "other"})
    (far,) = (entry["queue"] for entry in made["queues"])
    broker.ok("POST", "/groups/readers/subscriptions", {"topic": "far"})
    until(lambda: len(member.heartbeat()["assigned"]) == 2)
    member.acquire()
    send(broker, "far", far)
    node_rows.update(
        name="other", settings={"state": "offline"}, actor=actors.command("test")
    )
    snapshot.refresh()
    commits = [member.position(far, 1), member.position(queue, 1)]
    answer = member.pull(member.position(far, 1), member.position(queue, 1), commit=commits)
    assert states(answer) == [(far, "unavailable"), (queue, "ok")]
    assert [queue["state"] for queue in answer["queues"]] == ["unavailable", "ok"]
    assert len(answer["queues"][1]["messages"]) == 2
    # Also if nothing can be committed: the commit alone would be answered 503.
    problem(
        broker.call("POST", f"{member.path}/commit", {"offsets": commits[:1]}),
        503,
        "node_unavailable",
    )
    answer = member.pull(member.position(queue, 1), commit=commits[:1], wait_ms=LONG_MS)
    assert states(answer) == [(far, "unavailable")]
    assert len(answer["queues"][0]["messages"]) == 2


def test_a_slow_node_holds_up_no_queue_of_another_node(
    *,
    broker: Broker,
    queue: int,
    member: Member,
    make_node: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_node("other")
    made = broker.ok("POST", "/topics", {"name": "far", "queues": 1, "node": "other"})
    (far,) = (entry["queue"] for entry in made["queues"])
    snapshot.refresh()
    limits: list[float | None] = []
    call = positions._NodeCall

    def noted(node_id: int, within_s: float | None) -> Any:
        limits.append(within_s)
        return call(node_id, within_s)

    monkeypatch.setattr(positions, "_NodeCall", noted)
    commit = [member.position(queue, 1)]
    member.pull(member.position(queue, 1), commit=commit)
    member.pull({"queue": far, "epoch": 1, "offset": 0}, commit=commit)
    assert limits == [None, positions.SLOW_S]


def test_a_draining_broker_commits_nothing(
    broker: Broker, queue: int, member: Member
) -> None:
    draining.disable()
    body = {"generation": 0, "queues": [], "commit": [member.position(queue, 1)]}
    problem(broker.call("POST", f"{member.path}/pull", body), 503, "draining")
    assert committed(broker) == {queue: 0}
    assert member.commit(member.position(queue, 1)) == ["ok"]


def test_a_client_that_hangs_up_has_committed(
    broker: Broker, queue: int, member: Member
) -> None:
    address = urlsplit(broker.url)
    body = msgspec.json.encode(
        {
            "generation": member.generation,
            "queues": [member.position(queue, 3)],
            "commit": [member.position(queue, 3)],
            "wait_ms": LONG_MS,
        }
    )
    head = (
        f"POST /api/v1{member.path}/pull HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Authorization: Bearer {broker.api_key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port)) as client:
        client.sendall(head.encode() + body)
    until(lambda: committed(broker) == {queue: 3})
    # The repeat finds what it asks for.
    answer = member.pull(member.position(queue, 3), commit=[member.position(queue, 3)])
    assert states(answer) == [(queue, "ok")]


@pytest.mark.parametrize(
    ("commit", "field"),
    [
        ({}, "commit"),
        (None, "commit"),
        ("7-1", "commit"),
        ([7], "commit[0]"),
        ([{"queue": 1, "epoch": 1}], "commit[0].offset"),
        ([{"queue": 1, "epoch": 1, "offset": -1}], "commit[0].offset"),
        ([{"queue": 1, "epoch": 1, "offset": 2**63}], "commit[0].offset"),
        ([{"queue": 1, "epoch": 1, "offset": "1"}], "commit[0].offset"),
        ([{"queue": 1, "epoch": 1, "offset": True}], "commit[0].offset"),
        ([{"queue": 1, "epoch": 1, "offset": 0, "force": True}], "commit[0].force"),
        ([{"queue": 1, "epoch": 1, "offset": 0}] * 2, "commit[1].queue"),
        (
            [
                {"queue": n, "epoch": 1, "offset": 0}
                for n in range(config.max_pull_queues + 1)
            ],
            "commit",
        ),
    ],
)
def test_a_wrong_commit_is_named_and_nothing_is_done(
    *, broker: Broker, queue: int, member: Member, commit: Any, field: str
) -> None:
    body = {"generation": 0, "queues": [member.position(queue, 0)], "commit": commit}
    problem(broker.call("POST", f"{member.path}/pull", body), 400, "invalid", field)
    assert committed(broker) == {queue: 0}


def test_as_many_commits_as_queues_fit(queue: int, member: Member) -> None:
    entries = [
        {"queue": 1_000_000 + n, "epoch": 1, "offset": 2**63 - 1}
        for n in range(config.max_pull_queues - 1)
    ]
    entries.append(member.position(queue, 1))
    answer = member.broker.packed(
        "POST",
        f"{member.path}/pull",
        {"generation": member.generation, "queues": entries, "commit": entries},
    )
    assert [result["state"] for result in answer["commit"]] == ["fenced"] * (
        config.max_pull_queues - 1
    ) + ["ok"]


def test_another_key_may_not_commit_with_a_pull(
    broker: Broker, queue: int, member: Member
) -> None:
    body = {"generation": 0, "queues": [], "commit": [member.position(queue, 1)]}
    stranger = broker.as_key({"consume": ["*"]})
    problem(stranger.call("POST", f"{member.path}/pull", body), 403, "forbidden")
    problem(
        Broker(broker.url, "wrong").call("POST", f"{member.path}/pull", body),
        401,
        "unauthenticated",
    )
    assert committed(broker) == {queue: 0}


def test_a_member_of_a_share_group_commits_nothing(broker: Broker, queue: int) -> None:
    share = Member.join(broker, "shared", mode="share", topics=["single"])
    body = {
        "generation": 0,
        "queues": [],
        "commit": [{"queue": queue, "epoch": 1, "offset": 0}],
    }
    problem(broker.call("POST", f"{share.path}/pull", body), 409, "group_settings_differ")


def test_brokers_announce_that_they_take_commits_with_pulls(broker: Broker) -> None:
    assert "pull_commit" in broker.ok("GET", "")["features"]
