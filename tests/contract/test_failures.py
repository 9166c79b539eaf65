"""Failed and dead messages over HTTP, through the client and by its commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from catmq_client import HttpTransport
from catmq_client.admin.api import Admin
from catmq_client.cli import main
from metadata.cache import snapshot
from tests.support.broker import Broker, problem
from tests.support.members import Member, reader
from tests.support.waiting import until


@pytest.fixture
def failing(failure_node: str, broker: Broker, queue: int) -> Member:
    """A member of group `readers` that owns topic `single`, in which three messages lie."""
    messages = [{"body": f"m{number}", "key": "k"} for number in range(3)]
    broker.ok("POST", "/topics/single/messages", {"messages": messages})
    return reader(broker)


@pytest.fixture
def client(broker: Broker) -> Iterator[HttpTransport]:
    """The client's way to the broker."""
    made = HttpTransport(broker.url, api_key=broker.api_key)
    yield made
    made.close()


def named(
    member: Member, queue: int, *offsets: int, error: str | None = None
) -> dict[str, Any]:
    about = {"epoch": member.owned[queue], "first_failed_at_ms": 1_000}
    more = {} if error is None else {"error": error}
    return {
        "messages": [
            {"queue": queue, "offset": offset, **about, **more} for offset in offsets
        ]
    }


def fail(member: Member, queue: int, *offsets: int, error: str = "ValueError: no") -> Any:
    body = named(member, queue, *offsets, error=error)
    return member.broker.ok("POST", f"{member.path}/failures", body)


def change(broker: Broker, **settings: Any) -> None:
    """Changes the subscription; the broker knows at once."""
    broker.ok("PATCH", "/groups/readers/subscriptions/single", settings)
    snapshot.refresh()


def kill_all(broker: Broker, member: Member, queue: int) -> list[dict[str, Any]]:
    """Lets all three messages die; the dead, the newest first."""
    change(broker, retries=0)
    assert len(fail(member, queue, 0, 1, 2)["dead"]) == 3
    found: list[dict[str, Any]] = broker.ok("GET", "/groups/readers/dead")["messages"]
    return found


def test_a_failed_message_comes_back_to_its_group_with_attempt_and_origin(
    broker: Broker, queue: int, failing: Member
) -> None:
    change(broker, retry_delays_s=[0])

    def due_at_once() -> Any:
        told = failing.heartbeat()
        mine = [one for one in told["assigned"] if one.get("origin_topic") == "single"]
        assert {one["topic"] for one in mine} <= {"readers_single_fail"}
        return [one["queue"] for one in mine]

    places = until(due_at_once)
    failing.acquire()
    answer = fail(failing, queue, 1)
    assert [(one["offset"], one["attempt"]) for one in answer["retried"]] == [(1, 1)]
    assert (answer["dead"], answer["refused"]) == ([], [])

    def come() -> Any:
        pulled = failing.pull(
            *(failing.position(place, 0) for place in places), wait_ms=1_000
        )
        return [message for one in pulled["queues"] for message in one["messages"]]

    (copy,) = until(come, limit_s=30)
    assert (copy["body"], copy["key"], copy["headers"], copy["attempt"]) == (
        "m1",
        "k",
        None,
        1,
    )
    assert copy["origin"] == {
        "topic": "single",
        "queue": queue,
        "offset": 1,
        "first_failed_at_ms": 1_000,
        "error": "ValueError: no",
    }
    original = failing.pull(failing.position(queue, 1))["queues"][0]["messages"][0]
    assert "origin" not in original


def test_wrong_reports_are_refused_by_name(
    broker: Broker, queue: int, failing: Member
) -> None:
    path = f"{failing.path}/failures"
    problem(broker.call("POST", path, {"messages": []}), 400, "invalid")
    twice = named(failing, queue, 0, 0)
    problem(broker.call("POST", path, twice), 400, "invalid", "messages[1].offset")
    many = {"messages": named(failing, queue, 0)["messages"] * 1_001}
    problem(broker.call("POST", path, many), 400, "invalid")
    stale = named(failing, queue, 0)
    stale["messages"][0]["epoch"] -= 1
    refused = broker.ok("POST", path, stale)["refused"]
    assert refused == [{"queue": queue, "offset": 0, "state": "fenced"}]


def test_a_key_that_may_only_consume_can_fail_but_not_see_the_dead(
    broker: Broker, queue: int, failing: Member
) -> None:
    poor = broker.as_key({"consume": ["*"]})
    broker.ok("DELETE", failing.path)
    member = Member.join(poor, name="poor")
    until(lambda: queue in {one["queue"] for one in member.heartbeat()["assigned"]})
    member.acquire()
    assert len(fail(member, queue, 0)["retried"]) == 1
    for path in ("/dead", "/dead/summary", "/failed", "/redrives", "/dead/dead-1-1"):
        problem(poor.call("GET", f"/groups/readers{path}"), 403, "forbidden")
    problem(
        poor.call("POST", "/groups/readers/dead/redrive", {"all": True}), 403, "forbidden"
    )
    problem(poor.call("DELETE", "/groups/readers/dead?all=true"), 403, "forbidden")


def test_the_dead_are_listed_counted_shown_and_dropped(
    broker: Broker, queue: int, failing: Member
) -> None:
    dead = kill_all(broker, failing, queue)
    assert sorted(one["offset"] for one in dead) == [0, 1, 2]
    assert {
        (one["topic"], one["queue"], one["attempts"], one["error_class"]) for one in dead
    } == {("single", queue, 1, "ValueError")}
    pages, after = [], ""
    while True:
        page = broker.ok("GET", f"/groups/readers/dead?limit=1&after={after}")
        pages += page["messages"]
        if page["next"] is None:
            break
        after = page["next"]
    assert pages == dead
    assert (
        broker.ok("GET", "/groups/readers/dead?topic=single&error=KeyError")["messages"]
        == []
    )
    assert (
        broker.ok("GET", "/groups/readers/dead?topic=single&error=ValueError")["messages"]
        == dead
    )
    summary = broker.ok("GET", "/groups/readers/dead/summary")
    (count,) = summary["errors"]
    assert (summary["count"], count["topic"], count["error_class"], count["count"]) == (
        3, "single", "ValueError", 3,
    )  # fmt: skip
    whole = broker.ok("GET", f"/groups/readers/dead/{dead[0]['id']}")
    assert (whole["body"], whole["error"]) == (f"m{dead[0]['offset']}", "ValueError: no")
    assert broker.ok("DELETE", f"/groups/readers/dead?ids={dead[0]['id']}") == {
        "dropped": 1
    }
    problem(
        broker.call("GET", f"/groups/readers/dead/{dead[0]['id']}"),
        404,
        "message_not_found",
    )
    assert broker.ok("DELETE", "/groups/readers/dead?error=ValueError&topic=single") == {
        "dropped": 2
    }
    problem(broker.call("DELETE", "/groups/readers/dead"), 400, "invalid", "all")
    problem(broker.call("GET", "/groups/readers/dead/7-1"), 400, "invalid", "id")
    problem(broker.call("GET", "/groups/readers/dead?after=x"), 400, "invalid", "after")


def test_a_redrive_brings_them_back_and_is_listed(
    broker: Broker, queue: int, failing: Member, client: HttpTransport
) -> None:
    kill_all(broker, failing, queue)
    dead = Admin(client).dead_letters
    made = dead.redrive("readers", topic="single", to="topic", rate=1_000)
    assert (made["state"], made["total"], made["to"]) == ("running", 3, "topic")
    until(lambda: dead.redrive_state("readers", made["id"])["state"] == "done")
    assert dead.redrives("readers")[0]["redriven"] == 3
    assert list(dead.messages("readers")) == []
    sent = broker.ok("GET", f"/topics/single/messages?queue={queue}&offset=3")["messages"]
    assert sorted(one["body"] for one in sent) == ["m0", "m1", "m2"]
    problem(broker.call("GET", "/groups/readers/redrives/999"), 404, "redrive_not_found")


def test_a_redrive_to_a_topic_that_is_closed_is_refused_and_changes_nothing(
    broker: Broker, queue: int, failing: Member
) -> None:
    kill_all(broker, failing, queue)
    broker.ok("PATCH", "/nodes/main", {"state": "read_only"})
    snapshot.refresh()
    answer = broker.call(
        "POST", "/groups/readers/dead/redrive", {"all": True, "to": "topic"}
    )
    problem(answer, 503, "no_writable_queue")
    assert broker.ok("GET", "/groups/readers/redrives")["redrives"] == []
    assert len(broker.ok("GET", "/groups/readers/dead")["messages"]) == 3


def test_the_commands_show_redrive_and_drop(
    broker: Broker, queue: int, failing: Member, capsysbinary: Any
) -> None:
    def run(*argv: str, code: int = 0) -> str:
        assert main([*argv, "--url", broker.url, "--api-key", broker.api_key]) == code
        text: bytes = capsysbinary.readouterr().out
        return text.decode()

    assert len(fail(failing, queue, 0)["retried"]) == 1
    waiting = run("failed", "readers")
    assert "readers_single_fail" in waiting and "ValueError: no" in waiting
    change(broker, retries=0)
    assert len(fail(failing, queue, 1, 2)["dead"]) == 2
    rows = [
        json.loads(line)
        for line in run("dlq", "list", "readers", "--output", "json").splitlines()
    ]
    assert {row["offset"] for row in rows} == {1, 2}
    assert "ValueError" in run("dlq", "summary", "readers")
    assert (
        json.loads(run("dlq", "show", "readers", rows[0]["id"]))["body"]
        == f"m{rows[0]['offset']}"
    )
    run("dlq", "redrive", "readers", code=2)
    assert "running" in run("dlq", "redrive", "readers", rows[0]["id"])
    until(lambda: "done" in run("dlq", "redrives", "readers"))
    run("dlq", "drop", "readers", "--all", "--yes")
    assert run("dlq", "list", "readers", "--output", "json") == ""
