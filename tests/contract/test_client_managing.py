"""The client's calls for groups and brokers, and the commands made of them, against the
real views.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from catmq_client import HttpTransport
from catmq_client.admin.api import Admin
from catmq_client.cli import main
from metadata.config import config
from metadata.db.clock import database_now
from metadata.models import Broker as Row
from tests.support.broker import Broker
from tests.support.members import Member
from tests.support.waiting import until

ME = config.broker_name
Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def transport(broker: Broker) -> Iterator[HttpTransport]:
    """The client's way to the broker."""
    made = HttpTransport(broker.url, api_key=broker.api_key, discover=False)
    yield made
    made.close()


@pytest.fixture
def admin(transport: HttpTransport) -> Admin:
    """The client's management calls."""
    return Admin(transport)


@pytest.fixture
def run(transport: HttpTransport, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command that must succeed; the objects it prints."""

    def command(*argv: str) -> list[dict[str, Any]]:
        assert main([*argv], transport=transport) == 0, capsys.readouterr().err
        return [
            json.loads(line)
            for line in capsys.readouterr().out.splitlines()
            if line.startswith("{")
        ]

    return command


def test_settings_of_a_group_are_changed_and_taken_back(admin: Admin, run: Run) -> None:
    admin.create_group("g")
    run(
        "group",
        "set",
        "g",
        "--allow",
        "10.0.0.0/8",
        "--deny",
        "10.1.0.0/16",
        "--max-active",
        "2",
    )
    group = admin.group("g")
    assert (group["allow_addresses"], group["deny_addresses"]) == (
        "10.0.0.0/8",
        "10.1.0.0/16",
    )
    assert group["max_active_members"] == 2
    run(
        "group",
        "set",
        "g",
        "--allow",
        "",
        "--max-active",
        "none",
        "--session-timeout-ms",
        "5000",
    )
    group = admin.group("g")
    assert (
        group["allow_addresses"],
        group["max_active_members"],
        group["session_timeout_ms"],
    ) == (
        "",
        None,
        5000,
    )


def test_how_long_a_topic_keeps_messages_is_changed_and_taken_back(
    admin: Admin, topic: str, run: Run
) -> None:
    run("topic", "set", topic, "--retention-days", "2", "--keep-unread-days", "0")
    run("topic", "set", topic, "--retention-bytes", "1.5GB", "--keyed", "available")
    changed = admin.topic(topic)
    assert (changed["retention_days"], changed["keep_unread_days"]) == (2, 0)
    assert (changed["retention_bytes"], changed["keyed"]) == (3 << 29, "available")
    run(
        "topic",
        "set",
        topic,
        "--retention-bytes",
        "none",
        "--on-unknown",
        "resend",
        "--description",
        "orders",
    )
    changed = admin.topic(topic)
    assert (changed["retention_bytes"], changed["retention_days"]) == (None, 2)
    assert (changed["on_unknown"], changed["description"]) == ("resend", "orders")


def test_topics_and_queues_are_stopped_and_started(
    admin: Admin, topic: str, run: Run
) -> None:
    first, second = (row["queue"] for row in admin.topic(topic)["queues"])
    admin.create_group("g")
    admin.subscribe("g", topic)
    run("group", "pause", "g", "--topic", topic, "--queue", str(first))
    run("group", "pause", "g", "--queue", str(second))
    assert admin.subscription("g", topic)["stopped_queues"] == [first, second]
    run("group", "resume", "g", "--queue", str(first))
    assert admin.subscription("g", topic)["stopped_queues"] == [second]
    run("group", "pause", "g", "--topic", topic)
    assert admin.subscription("g", topic)["stopped"] is True
    run("group", "resume", "g", "--topic", topic)
    assert admin.subscription("g", topic)["stopped"] is False


def test_a_rebalance_is_planned_done_and_remembered(
    broker: Broker, admin: Admin, topic: str, run: Run
) -> None:
    Member.join(broker, name="ann", topics=[topic])
    admin.change_group("readers", max_active_members=1)
    assert run("group", "rebalance", "readers", "--dry-run", "--output", "json") == []
    assert run("group", "rebalance", "readers", "--output", "json") == []
    (row,) = run("group", "rebalances", "readers", "--limit", "1", "--output", "json")
    assert row == next(admin.rebalances("readers", page=1))
    assert len(list(admin.rebalances("readers", page=1))) == len(
        list(admin.rebalances("readers"))
    )
    (shown,) = run("group", "show", "readers", "--output", "json")
    assert [member["active"] for member in shown["members"]] == [True]
    for verb in ("show", "rebalances", "rebalance"):
        run("group", verb, "readers")  # as tables


def test_positions_of_an_instance_are_shown_and_moved(
    broker: Broker, admin: Admin, queue: int, run: Run
) -> None:
    broker.ok(
        "POST", "/topics/single/messages", {"messages": [{"body": "a"}, {"body": "b"}]}
    )
    admin.create_group("all", mode="broadcasting")
    for name in ("east", "west"):
        body = {
            "name": name,
            "incarnation": str(uuid.uuid4()),
            "instance_id": name,
            "topics": ["single"],
        }
        broker.ok("POST", "/groups/all/consumers", body)
    rows = run("lag", "all", "--output", "json")
    assert [(row["queue"], row["instance"]) for row in rows] == [
        (queue, "east"),
        (queue, "west"),
    ]
    reset = (
        "offsets",
        "reset",
        "all",
        "single",
        "--to",
        "latest",
        "--stop",
        "--output",
        "json",
    )
    (move,) = run(*reset, "--instance", "west")
    assert (move["instance"], move["from"], move["to"]) == ("west", 0, 2)
    assert [row["committed"] for row in admin.lag("all")["queues"]] == [0, 2]


def another(name: str, *, seconds: int) -> None:
    """The row of a broker elsewhere, last seen so many seconds from now."""
    seen = database_now() + timedelta(seconds=seconds)
    Row.objects.create(name=name, url=f"http://{name}:1", started_at=seen, last_seen=seen)


def test_brokers_are_listed_pulled_and_forgotten(
    broker: Broker, admin: Admin, run: Run
) -> None:
    another("alive", seconds=8)
    another("gone", seconds=-60)
    until(lambda: len(admin.brokers()) == 3)
    rows = run("brokers", "--output", "json")
    assert {row["name"]: row["alive"] for row in rows} == {
        ME: True,
        "alive": True,
        "gone": False,
    }
    run("brokers")  # as a table
    run("broker", "drain", "alive")
    until(lambda: {b["name"]: b["state"] for b in admin.brokers()}["alive"] == "out")
    run("broker", "enable", "alive")
    run("broker", "forget", "gone", "--yes")
    until(lambda: "gone" not in {b["name"] for b in admin.brokers()})


def test_a_client_finds_the_brokers_of_the_list_and_avoids_what_is_out(
    broker: Broker, topic: str
) -> None:
    another("127.0.0.2", seconds=8)  # a loopback address, as the broker's own
    until(lambda: len(broker.ok("GET", "/brokers")["brokers"]) == 2)
    for state, urls in (
        ("in", {broker.url, "http://127.0.0.2:1"}),
        ("out", {"http://127.0.0.2:1"}),
    ):
        broker.ok("PATCH", f"/brokers/{ME}", {"state": state})
        until(lambda state=state: broker.ok("GET", f"/brokers/{ME}")["state"] == state)
        client = HttpTransport(broker.url, api_key=broker.api_key)
        client.request("GET", "/api/v1/topics")
        until(lambda client=client, urls=urls: set(client.urls) == urls)
        assert client.request("GET", "/api/v1/topics")["topics"]
        client.close()
