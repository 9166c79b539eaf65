"""Join, own, read, commit, leave - and what a consumer may not do."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest

from metadata.cache import snapshot
from metadata.config import config
from metadata.membership import consumers
from tests.support.broker import Broker, problem
from tests.support.members import Member, reader
from tests.support.waiting import until


def send(broker: Broker, *bodies: str) -> None:
    """Sends messages to the single queue."""
    broker.ok(
        "POST", "/topics/single/messages", {"messages": [{"body": body} for body in bodies]}
    )


def test_a_member_reads_commits_and_its_successor_goes_on_there(
    broker: Broker, queue: int
) -> None:
    send(broker, "a", "b", "c")
    first = reader(broker)
    (pulled,) = first.pull(first.position(queue, 0), max_messages=2)["queues"]
    assert [message["body"] for message in pulled["messages"]] == ["a", "b"]
    assert (pulled["state"], pulled["next_offset"], pulled["head"]) == ("ok", 2, 3)
    assert first.commit(first.position(queue, 2)) == ["ok"]
    broker.ok("DELETE", first.path)

    second = Member.join(broker, name="c2")
    second.heartbeat()
    assert second.acquire() == [{"queue": queue, "state": "ok", "offset": 2}]


def test_registering_twice_answers_the_same_and_names_what_was_made(
    broker: Broker, queue: int
) -> None:
    body = {
        "name": "c",
        "incarnation": str(uuid.uuid4()),
        "topics": ["single"],
        "sdk": "test",
    }
    first = broker.call("POST", "/groups/readers/consumers", body)
    assert first.status_code == 201
    assert first.headers["Location"] == "/api/v1/consumers/" + first.json()["consumer_id"]
    assert first.json()["created"] == ["group:readers", "subscription:readers/single"]
    second = broker.ok("POST", "/groups/readers/consumers", body)
    assert second["consumer_id"] == first.json()["consumer_id"]
    assert second["created"] == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": None}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "n" * 101}, "name"),
        ({"incarnation": "x"}, "incarnation"),
        ({"instance_id": "a b"}, "instance_id"),
        ({"topics": "single"}, "topics"),
        ({"topics": [4]}, "topics[0]"),
        ({"sdkk": "x"}, "sdkk"),
    ],
)
def test_a_wrong_field_of_a_registration_is_named(
    broker: Broker, queue: int, change: dict[str, Any], field: str
) -> None:
    body = {
        "name": "c",
        "incarnation": str(uuid.uuid4()),
        "topics": ["single"],
        "sdk": "test",
    } | change
    problem(broker.call("POST", "/groups/readers/consumers", body), 400, "invalid", field)


def test_joining_without_topics_needs_a_group(broker: Broker) -> None:
    body = {"name": "c", "incarnation": str(uuid.uuid4())}
    problem(broker.call("POST", "/groups/nope/consumers", body), 404, "group_not_found")
    problem(
        broker.call("POST", "/groups/nope/consumers", {**body, "topics": ["none"]}),
        404,
        "topic_not_found",
    )


@pytest.mark.parametrize(
    "tags",
    [
        "a && b",
        "a & b",
        "a OR b",
        "a and b",
        "(a > 3)",
        "a = 'b'",
        "not a",
        "'a'",
        '"a" || b',
        "a || b c in d",
        "a,,b",
    ],
)
def test_a_tag_filter_that_cannot_be_meant_is_refused(
    broker: Broker, queue: int, tags: str
) -> None:
    reader(broker)
    path = "/groups/readers/subscriptions/single"
    told = problem(broker.call("PATCH", path, {"tags": tags}), 400, "invalid", "tags")
    assert "write tags joined by ||" in told["errors"][0]["message"]


def test_a_tag_filter_may_be_joined_by_commas(broker: Broker, queue: int) -> None:
    member = reader(broker)
    broker.ok("PATCH", "/groups/readers/subscriptions/single", {"tags": "new,it's paid"})
    messages = [
        {"body": tag, "tag": tag} for tag in ("new", "old", "it's paid", "new,it's paid")
    ]
    broker.ok("POST", "/topics/single/messages", {"messages": messages})
    snapshot.refresh()
    (pulled,) = member.pull(member.position(queue, 0))["queues"]
    assert [message["body"] for message in pulled["messages"]] == ["new", "it's paid"]


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({str(n): ["a"] for n in range(9)}, "has 9 names; at most 8 are allowed"),
        (
            {"region": [str(n) for n in range(33)]},
            "'region' has 33 values; 1 to 32 are allowed",
        ),
        ({"region": []}, "'region' has 0 values"),
        ({"region": ["eu", ""]}, "a value of 'region' is missing"),
        ({"region": ["eu,us"]}, "'eu,us' is no value of 'region': it has no comma"),
        ({"region": [" eu"]}, "no blank at its ends"),
        ({"a=b": ["eu"]}, "'a=b' is no name of a header"),
        ({"": ["eu"]}, "'' is no name of a header"),
        ({"region": ["e\nu"]}, "is no value of 'region'"),
        ({"region": ["e\u2028u"]}, "is no value of 'region'"),
        ({"region": ["x" * 8190]}, "has 8196 bytes; at most 8192 are allowed"),
    ],
)
def test_a_header_filter_that_cannot_be_meant_is_refused(
    broker: Broker, queue: int, headers: dict[str, Any], said: str
) -> None:
    reader(broker)
    path = "/groups/readers/subscriptions/single"
    told = problem(
        broker.call("PATCH", path, {"headers": headers}), 400, "invalid", "headers"
    )
    assert said in told["errors"][0]["message"]


@pytest.mark.parametrize(
    "headers", [None, "region=eu", ["eu"], {"region": "eu"}, {"region": [1]}]
)
def test_a_header_filter_of_another_type_is_refused(
    broker: Broker, queue: int, headers: Any
) -> None:
    reader(broker)
    told = broker.call(
        "PATCH", "/groups/readers/subscriptions/single", {"headers": headers}
    )
    assert (
        problem(told, 400, "invalid")["errors"][0]["field"].partition(".")[0] == "headers"
    )


def test_a_header_filter_is_set_told_and_at_work(broker: Broker, queue: int) -> None:
    member = reader(broker)
    path, wanted = (
        "/groups/readers/subscriptions/single",
        {"region": ["eu", "it's"], "kind": ["order"]},
    )
    assert broker.ok("GET", path)["headers"] == {}
    assert broker.ok("PATCH", path, {"headers": wanted})["headers"] == wanted
    kinds = (
        {"region": "eu"},
        {"region": "it's", "kind": "order"},
        {"region": "us", "kind": "order"},
        None,
    )
    messages = [{"body": str(n), "headers": headers} for n, headers in enumerate(kinds)]
    broker.ok("POST", "/topics/single/messages", {"messages": messages})
    snapshot.refresh()
    assert member.heartbeat()["subscriptions"]["single"]["headers"] == wanted
    (pulled,) = member.pull(member.position(queue, 0))["queues"]
    assert ([one["body"] for one in pulled["messages"]], pulled["next_offset"]) == (
        ["1"],
        4,
    )
    assert broker.ok("PATCH", path, {"headers": {}})["headers"] == {}


@pytest.mark.parametrize("call", ["heartbeat", "acquire", "pull", "commit"])
def test_a_consumer_id_of_nobody_is_not_found(
    broker: Broker, queue: int, call: str
) -> None:
    member = reader(broker)
    forged = member.path[:-1] + ("A" if member.path[-1] != "A" else "B")
    for path in ("/consumers/nope", "/consumers/..", forged):
        answer = broker.call("POST", f"{path}/{call}", bodies(queue)[call])
        if path != "/consumers/..":  # which HTTP clients take out of the path
            problem(answer, 404, "consumer_not_found")


def bodies(queue: int) -> dict[str, Any]:
    """A good body for every call of a consumer."""
    position = {"queue": queue, "epoch": 1, "offset": 0}
    return {
        "heartbeat": {"generation": 0, "owned": []},
        "acquire": {"queues": [{"queue": queue, "epoch": 1}]},
        "pull": {"generation": 0, "queues": [position]},
        "commit": {"offsets": [position]},
    }


@pytest.mark.parametrize("call", ["heartbeat", "acquire", "pull", "commit"])
def test_a_consumer_id_of_another_key_is_forbidden(
    broker: Broker, queue: int, call: str
) -> None:
    member = reader(broker)
    other = broker.as_key({"admin": ["*"]})
    problem(
        other.call("POST", f"{member.path}/{call}", bodies(queue)[call]), 403, "forbidden"
    )


def test_an_expired_consumer_is_gone_at_heartbeat_and_fenced_at_pull(
    broker: Broker, queue: int
) -> None:
    broker.ok("POST", "/groups", {"name": "readers", "session_timeout_ms": 2000})
    member = reader(broker)
    send(broker, "a")
    until(lambda: broker.ok("GET", "/groups/readers")["members"] == [])
    answer = broker.call("POST", f"{member.path}/heartbeat", bodies(queue)["heartbeat"])
    problem(answer, 410, "expired")
    answer = broker.call("POST", f"{member.path}/acquire", bodies(queue)["acquire"])
    problem(answer, 410, "expired")

    successor = reader(broker, name="c2")
    assert successor.pull(successor.position(queue, 0))["queues"][0]["state"] == "ok"
    assert member.pull(member.position(queue, 0))["queues"][0]["state"] == "fenced"
    assert member.commit(member.position(queue, 1)) == ["fenced"]


def test_a_member_may_hold_more_queues_than_one_pull_names(
    broker: Broker, queue: int
) -> None:
    member = reader(broker)
    owned = [
        {"queue": number, "epoch": 1} for number in range(1, config.max_pull_queues + 2)
    ]
    broker.ok("POST", f"{member.path}/heartbeat", {"generation": 0, "owned": owned})


def test_a_replaced_consumer_is_gone_at_heartbeat_and_fenced_at_pull(
    broker: Broker, queue: int
) -> None:
    old, new = reader(broker), reader(broker)
    answer = broker.call("POST", f"{old.path}/heartbeat", bodies(queue)["heartbeat"])
    problem(answer, 410, "replaced")
    assert old.pull(old.position(queue, 0))["queues"][0]["state"] == "fenced"
    assert new.pull(new.position(queue, 0))["queues"][0]["state"] == "ok"


@pytest.mark.parametrize(
    ("call", "body", "field"),
    [
        ("heartbeat", {"owned": []}, "generation"),
        ("heartbeat", {"generation": 0, "owned": [{"queue": 1}]}, "owned[0].epoch"),
        ("heartbeat", {"generation": "0", "owned": []}, "generation"),
        ("acquire", {"queues": [{"queue": 1, "epoch": -1}]}, "queues[0].epoch"),
        ("acquire", {"queues": [{"queue": 1, "epoch": 1}] * 2}, "queues[1].queue"),
        ("pull", {"queues": []}, "generation"),
        (
            "pull",
            {"generation": 0, "queues": [{"queue": 1, "epoch": 1}]},
            "queues[0].offset",
        ),
        (
            "pull",
            {"generation": 0, "queues": [{"queue": 1, "epoch": 1, "offset": -1}]},
            "queues[0].offset",
        ),
        (
            "pull",
            {"generation": 0, "queues": [{"queue": 1, "epoch": 1, "offset": 2**63}]},
            "queues[0].offset",
        ),
        (
            "pull",
            {"generation": 0, "queues": [{"queue": 1, "epoch": 1, "offset": 0}] * 2},
            "queues[1].queue",
        ),
        (
            "pull",
            {"generation": 0, "queues": [], "wait_ms": config.max_wait_ms + 1},
            "wait_ms",
        ),
        ("pull", {"generation": 0, "queues": [], "wait_ms": -1}, "wait_ms"),
        ("pull", {"generation": 0, "queues": [], "max_messages": 0}, "max_messages"),
        ("pull", {"generation": 0, "queues": [], "max_messages": 1001}, "max_messages"),
        ("pull", {"generation": 0, "queues": [], "max_bytes": 0}, "max_bytes"),
        ("pull", {"generation": 0, "queues": [], "timeout": 1}, "timeout"),
        (
            "pull",
            {
                "generation": 0,
                "queues": [{"queue": n, "epoch": 1, "offset": 0} for n in range(1001)],
            },
            "queues",
        ),
        ("commit", {"offsets": {}}, "offsets"),
        (
            "commit",
            {"offsets": [{"queue": 1, "epoch": 1, "offset": True}]},
            "offsets[0].offset",
        ),
        (
            "commit",
            {"offsets": [{"queue": 1, "epoch": 1, "offset": 0}] * 2},
            "offsets[1].queue",
        ),
    ],
)
def test_a_wrong_field_is_named(
    *, broker: Broker, queue: int, call: str, body: Any, field: str
) -> None:
    member = reader(broker)
    problem(broker.call("POST", f"{member.path}/{call}", body), 400, "invalid", field)


def test_offsets_out_of_range_are_said_to_be_so(broker: Broker, queue: int) -> None:
    send(broker, "a")
    member = reader(broker)
    (pulled,) = member.pull(member.position(queue, 5), wait_ms=5000)["queues"]
    assert (pulled["state"], pulled["head"], pulled["messages"]) == ("out_of_range", 1, [])
    assert member.commit(member.position(queue, 2)) == ["out_of_range"]
    assert member.commit(member.position(queue, 1)) == ["ok"]


def test_queues_of_nobody_and_of_others_are_fenced(
    broker: Broker, queue: int, topic: str
) -> None:
    member = reader(broker)
    foreign = broker.ok("GET", f"/topics/{topic}")["queues"][0]["queue"]
    for other in (foreign, 999_999):
        position = {"queue": other, "epoch": 1, "offset": 0}
        assert member.pull(position, wait_ms=5000)["queues"][0]["state"] == "fenced"
        assert member.commit(position) == ["fenced"]


def test_bytes_and_text_come_back_as_they_were_sent(broker: Broker, queue: int) -> None:
    messages: list[dict[str, Any]] = [
        {"body": "täxt", "key": "k", "tag": "t", "headers": {"h": "v"}, "trace_id": "x"},
        {"body_base64": "/wA="},
        {"body": ""},
    ]
    broker.ok("POST", "/topics/single/messages", {"messages": messages})
    member = reader(broker)
    text, raw, empty = member.pull(member.position(queue, 0))["queues"][0]["messages"]
    assert {name: text[name] for name in messages[0]} == messages[0]
    assert (raw["body_base64"], "body" in raw) == ("/wA=", False)
    assert (empty["body"], empty["key"], empty["headers"]) == ("", None, None)

    body = {"generation": member.generation, "queues": [member.position(queue, 0)]}
    packed = broker.packed("POST", f"{member.path}/pull", body)["queues"][0]["messages"]
    assert [message["body_bytes"] for message in packed] == [
        "täxt".encode(),
        b"\xff\x00",
        b"",
    ]


def test_two_members_share_the_queues_and_a_leaver_gives_them_back(
    broker: Broker, topic: str
) -> None:
    first = Member.join(broker, name="c1", topics=[topic])
    assert len(first.heartbeat()["assigned"]) == 2
    second = Member.join(broker, name="c2")

    def shared() -> bool:
        first.heartbeat()
        second.heartbeat()
        return len(first.owned) == len(second.owned) == 1

    until(shared)
    broker.ok("DELETE", second.path)
    until(lambda: len(first.heartbeat()["assigned"]) == 2)


def test_an_answer_while_metadata_is_away_says_that_it_may_be_repeated(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import OperationalError

    def away(**_: Any) -> None:
        raise OperationalError("gone")

    member = reader(broker)
    monkeypatch.setattr(consumers, "heartbeat", away)
    answer = broker.call("POST", f"{member.path}/heartbeat", bodies(queue)["heartbeat"])
    assert problem(answer, 503, "metadata_unavailable")["retriable"] is True


def test_a_heartbeat_tells_how_the_messages_of_each_topic_come(
    broker: Broker, queue: int
) -> None:
    member = reader(broker)
    told = member.heartbeat()["subscriptions"]
    assert (
        [*told] == ["single"]
        and told["single"]["retries"] == 16
        and "threads" not in told["single"]
    )
    changes = {"ordered": True, "retry_delays_s": [1, 2], "tags": "new||paid", "threads": 3}
    broker.ok("PATCH", "/groups/readers/subscriptions/single", changes)
    snapshot.refresh()
    told = member.heartbeat()["subscriptions"]["single"]
    assert told["ordered"] and told["retry_delays_s"] == [1, 2] and told["threads"] == 3
    assert told["tags"] == ["new", "paid"]


def test_messages_come_as_rows_to_who_asks_for_them(broker: Broker, queue: int) -> None:
    sent = {
        "body_base64": "/wA=",
        "key": "k",
        "tag": "t",
        "headers": {"h": "ä"},
        "trace_id": "x",
    }
    broker.ok("POST", "/topics/single/messages", {"messages": [sent, {"body": "b"}]})
    member = reader(broker)

    body = {"generation": member.generation, "queues": [member.position(queue, 0)]}
    wanted = {"Accept": "application/msgpack; messages=rows, application/problem+json"}
    answer = broker.call("POST", f"{member.path}/pull", body, headers=wanted)

    (pulled,) = msgspec.msgpack.decode(answer.content)["queues"]
    (first, second), (told, _) = (
        pulled["rows"],
        member.pull(member.position(queue, 0))["queues"][0]["messages"],
    )
    assert "messages" not in pulled
    assert first == [0, "k", "t", '{"h":"ä"}', b"\xff\x00", "x", told["stored_at_ms"], 0]
    assert second[:6] == [1, None, None, None, b"b", None]
