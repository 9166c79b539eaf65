"""The reach of rights on some names: not to what holds or serves the messages of everybody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from messagestore.topology import retry_topics
from metadata.cache import snapshot
from metadata.config import config
from metadata.models import ApiKey, AuditLog, ConsumerGroup, DbNode, Topic
from tests.support.broker import Broker, problem
from tests.support.mariadb import MariaDB

JOIN = {"name": "c", "incarnation": "01890a5d-ac96-774b-bcce-b302099a8057"}


@pytest.fixture
def team(broker: Broker) -> Broker:
    """A key that may do everything with what is called team-…, and has patterns that match
    a `*`.
    """
    return broker.as_key({"admin": ["team-*", "?"]})


@pytest.fixture
def unchanged(team: Broker) -> Iterator[None]:
    """Nothing is audited, so nothing changed."""
    before = AuditLog.objects.count()
    yield
    assert AuditLog.objects.count() == before


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/nodes", None),
        (
            "POST",
            "/nodes",
            {"name": "team-n", "engine": "sqlite", "database": "team-n.sqlite3"},
        ),
        ("GET", "/nodes/team-n", None),
        ("PATCH", "/nodes/team-n", {"state": "offline"}),
        ("DELETE", "/nodes/team-n?confirm=team-n", None),
        (
            "POST",
            "/nodes/team-n/examine",
            {"engine": "mysql", "host": "127.0.0.1", "database": "x"},
        ),
        ("PATCH", "/nodes/team-n/account", {"username": "x", "password": "y"}),
        ("PATCH", "/nodes/team-n/reader", {"username": "x", "password": "y"}),
        ("DELETE", "/nodes/team-n/reader", None),
        ("POST", "/nodes/team-n/promote", {"host": "127.0.0.1"}),
        ("POST", "/nodes/team-n/adopt", {"dry_run": True}),
        ("PATCH", "/brokers/team-b", {"state": "out"}),
        ("DELETE", "/brokers/team-b?confirm=team-b", None),
    ],
)
def test_admin_on_a_teams_names_reaches_no_node_and_no_broker(
    *,
    team: Broker,
    make_node: Callable[..., str],
    unchanged: None,
    method: str,
    path: str,
    body: Any,
) -> None:
    DbNode.objects.update(name="team-n")
    snapshot.refresh()
    found = problem(team.call(method, path, body), 403, "forbidden")
    assert "lacks the right admin on *, which" in found["detail"]


def test_examining_tells_a_team_nothing_of_other_machines(
    team: Broker, mariadb: MariaDB
) -> None:
    asked = {"engine": "mysql", "host": "127.0.0.1", "database": "x"}
    answers = [
        problem(
            team.call("POST", "/nodes/team-x/examine", {**asked, "port": port}),
            403,
            "forbidden",
        )
        for port in (mariadb.port, 1)
    ]
    assert answers[0]["detail"] == answers[1]["detail"]


@pytest.mark.parametrize(
    "place",
    [
        "/etc/passwd",
        "../outside.sqlite3",
        "n/../../outside.sqlite3",
        "metadata.sqlite3",
        "secret.key",
        "a\0b",
    ],
)
def test_a_file_outside_the_data_directory_or_of_the_server_is_no_node(
    bare_broker: Broker, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr("metadata.nodes.node_rows.config", replace(config, sqlite_dirs=()))
    given = {"engine": "sqlite", "database": place}
    for path, body in (("/nodes", {**given, "name": "n"}), ("/nodes/n/examine", given)):
        found = problem(bare_broker.call("POST", path, body), 400, "invalid")
        assert found["errors"][0]["field"] == "database", found
    assert not Path(config.data_dir.parent, "outside.sqlite3").exists()


def test_a_link_out_of_the_data_directory_is_followed_before_it_is_judged(
    bare_broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inside = config.data_dir / "inside"
    inside.symlink_to(tmp_path)
    body = {"name": "n", "engine": "sqlite", "database": "inside/n.sqlite3"}
    try:
        monkeypatch.setattr(
            "metadata.nodes.node_rows.config", replace(config, sqlite_dirs=())
        )
        problem(bare_broker.call("POST", "/nodes", body), 400, "invalid")
        monkeypatch.setattr(
            "metadata.nodes.node_rows.config", replace(config, sqlite_dirs=(str(tmp_path),))
        )
        bare_broker.ok("POST", "/nodes", body)
    finally:
        inside.unlink()


@pytest.mark.parametrize("what", ["topic", "group"])
def test_who_may_manage_does_not_make_itself_an_owner_and_so_read_and_send(
    broker: Broker, topic: str, what: str
) -> None:
    broker.ok("POST", "/groups", {"name": topic})
    manager, there = broker.as_key({"manage": ["*"]}), f"/{what}s/{topic}"
    new = {"name": "new", "owners": "mallory", **({"queues": 1} if what == "topic" else {})}
    for method, path, body in (
        ("PATCH", there, {"owners": "mallory", "description": "x"}),
        ("POST", f"/{what}s", new),
    ):
        found = problem(manager.call(method, path, body), 403, "forbidden")
        assert "which its owners get" in found["detail"]
    rows: Any = Topic.objects if what == "topic" else ConsumerGroup.objects
    (row,) = rows.all()
    assert row.owners == row.description == ""
    manager.ok("PATCH", there, {"owners": "", "description": "the owners stay as they are"})
    every = {right: ["ord*"] for right in ("manage", "produce", "consume", "browse")}
    broker.as_key(every).ok("PATCH", there, {"owners": "ann"})
    broker.as_key({"admin": ["ord*"]}).ok("PATCH", there, {"owners": "bob"})


def test_a_team_neither_sees_nor_revokes_keys_that_may_more_than_itself(
    broker: Broker, team: Broker
) -> None:
    broker.ok("POST", "/keys", {"name": "team-root", "rights": {"admin": ["*"]}})
    team.ok("POST", "/keys", {"name": "team-own", "rights": {"produce": ["team-*"]}})
    assert [one["name"] for one in team.ok("GET", "/keys")["keys"]] == ["team-own"]
    problem(team.call("GET", "/keys/team-root"), 403, "forbidden")
    problem(
        team.call("DELETE", "/keys/team-root", params={"confirm": "team-root"}),
        403,
        "forbidden",
    )
    assert ApiKey.objects.filter(name="team-root").exists()
    assert team.ok("GET", "/keys/team-own")["rights"] == {"produce": ["team-*"]}
    problem(
        team.call("POST", "/keys", {"name": "team-x", "rights": {"produce": ["*"]}}),
        403,
        "forbidden",
    )
    assert (
        team.call("DELETE", "/keys/team-own", params={"confirm": "team-own"}).status_code
        == 204
    )


def test_a_key_lifts_no_limit_of_its_own_and_makes_none_without(broker: Broker) -> None:
    team = {"admin": ["team-*"]}
    made = broker.ok(
        "POST", "/keys", {"name": "team-lead", "rights": team, "max_messages_per_s": 5}
    )
    snapshot.refresh()
    lead = Broker(broker.url, made["api_key"])
    problem(
        lead.call("PATCH", "/keys/team-lead", {"max_messages_per_s": None}),
        403,
        "forbidden",
    )
    new = {"name": "team-free", "rights": {"produce": ["team-*"]}}
    assert (
        "is limited" in problem(lead.call("POST", "/keys", new), 403, "forbidden")["detail"]
    )
    broker.ok("PATCH", "/keys/team-lead", {"max_messages_per_s": None})
    lead.ok("POST", "/keys", new)


def test_a_pattern_that_only_resembles_a_failure_topics_name_does_not_reach_it(
    broker: Broker, failure_node: str
) -> None:
    """`pay_*` is meant for a team of that prefix; group `pay` and topic `orders` belong to
    others.
    """
    broker.ok("POST", "/topics", {"name": "orders", "queues": 1})
    broker.ok("POST", "/groups", {"name": "pay"})
    broker.ok("POST", "/groups/pay/subscriptions", {"topic": "orders", "start": "earliest"})
    retry_topics.sweep()
    snapshot.refresh()
    there = "/topics/pay_orders_fail"
    (queue, *_) = broker.ok("GET", there)["queues"]
    look = f"{there}/messages?queue={queue['queue']}"
    calls: list[tuple[str, str, Any]] = [
        ("GET", look, None),
        ("GET", f"{there}/messages?key=a", None),
        ("GET", f"{there}/delayed", None),
        ("GET", f"{there}/read-plan", None),
        ("POST", f"{there}/messages", {"messages": [{"body": "a"}]}),
        ("PATCH", there, {"retention_days": 1}),
        ("DELETE", f"{there}?confirm=pay_orders_fail", None),
        ("PATCH", f"{there}/queues/{queue['queue']}", {"state": "read_only"}),
    ]
    rights = ("produce", "consume", "browse", "manage", "admin")
    near = broker.as_key({right: ["pay_*"] for right in rights})
    for method, path, body in calls:
        found = problem(near.call(method, path, body), 403, "forbidden")
        assert "whose failed messages are in pay_orders_fail" in found["detail"], path
    for patterns in (["pay*"], ["pay_orders_fail"], ["*"], ["pay_*", "orders"]):
        broker.as_key({"browse": patterns}).ok("GET", look)


def test_a_refusal_does_not_tell_whether_there_is_such_a_topic(
    broker: Broker, topic: str
) -> None:
    weak = broker.as_key({"consume": ["mine"], "manage": ["mine"], "produce": ["mine"]})
    for name in (topic, "nothing"):
        body = {**JOIN, "topics": [name]}
        found = problem(weak.call("POST", "/groups/mine/consumers", body), 403, "forbidden")
        assert f"lacks the right consume on topic {name}" in found["detail"]
    # nothing was made before it was refused
    assert not ConsumerGroup.objects.filter(name="mine").exists()


def test_manage_on_a_topic_does_not_read_it_through_a_group_of_ones_own(
    broker: Broker, topic: str
) -> None:
    manager = broker.as_key({"manage": ["*"], "consume": ["mine"], "produce": ["*"]})
    pair = {"version": 1, "subscriptions": [{"group": "mine", "topic": topic}]}
    manager.ok("POST", "/groups", {"name": "mine"})
    for path, body in (
        ("/groups/mine/subscriptions", {"topic": topic}),
        ("/groups/mine/consumers", {**JOIN, "topics": [topic]}),
        ("/import", {"document": pair}),
    ):
        refused = problem(manager.call("POST", path, body), 403, "forbidden")
        assert f"lacks the right consume on topic {topic}" in refused["detail"], path


def test_a_recall_does_not_tell_of_messages_in_topics_of_others(
    broker: Broker, queue: int
) -> None:
    there = "/topics/single/messages"
    later, now = {"body": "a", "delay_ms": 60_000}, {"body": "a"}
    waiting, stored = (
        broker.ok("POST", there, {"messages": [one]})["results"][0]["message_id"]
        for one in (later, now)
    )
    stranger, reader = (
        broker.as_key({"produce": ["mine"]}),
        broker.as_key({"browse": ["single"]}),
    )
    for message in (waiting, stored, "d1-999999", "999999-0"):
        problem(stranger.call("DELETE", f"/messages/{message}"), 404, "message_not_found")
    problem(reader.call("DELETE", f"/messages/{waiting}"), 403, "forbidden")
    assert broker.ok("GET", "/topics/single/delayed")["count"] == 1
