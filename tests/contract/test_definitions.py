"""Export and import over HTTP: documents, plans, and what is said of a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catmq_client.cli import main
from tests.support.broker import Broker, problem


def test_an_export_is_imported_and_the_plan_says_what_was_done(broker: Broker) -> None:
    broker.ok("POST", "/topics", {"name": "orders", "queues": 2, "retention_days": 3})
    broker.ok("POST", "/groups", {"name": "billing"})
    broker.ok(
        "POST", "/groups/billing/subscriptions", {"topic": "orders", "start": "latest"}
    )
    document = broker.ok("GET", "/export")
    assert (document["version"], document["topics"][0]["queues"]) == (1, 2)
    assert document["subscriptions"][0]["retry_delays_s"] == [
        10,
        30,
        60,
        300,
        600,
        1800,
        3600,
    ]
    same = broker.ok("POST", "/import", {"document": document})
    assert (same["dry_run"], [one["outcome"] for one in same["steps"]]) == (
        False,
        ["same"] * 3,
    )
    document["topics"][0]["name"] = document["subscriptions"][0]["topic"] = "refunds"
    asked = {"document": document, "dry_run": True}
    planned = broker.ok("POST", "/import", asked)
    assert [
        (one["place"], one["kind"], one["name"], one["outcome"]) for one in planned["steps"]
    ] == [
        ("topics[0]", "topic", "refunds", "create"),
        ("groups[0]", "group", "billing", "same"),
        ("subscriptions[0]", "subscription", "billing/refunds", "create"),
    ]
    problem(broker.call("GET", "/topics/refunds"), 404, "topic_not_found")
    broker.ok("POST", "/import", {**asked, "dry_run": False})
    assert broker.ok("GET", "/topics/refunds")["retention_days"] == 3
    assert broker.ok("GET", "/groups/billing/subscriptions/refunds")["start"] == "latest"


def test_the_command_exports_and_imports(
    broker: Broker, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = ["--url", broker.url, "--api-key", broker.api_key]
    assert main([*connection, "export", "--topic", "ord*"]) == 0
    document = json.loads(capsys.readouterr().out)
    document["topics"].append({"name": "refunds", "queues": 1, "retention_days": 2})
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(document))
    assert main([*connection, "import", str(path)]) == 0
    problem(broker.call("GET", "/topics/refunds"), 404, "topic_not_found")
    assert main([*connection, "import", str(path), "--apply", "--output", "table"]) == 0
    out, err = capsys.readouterr()
    assert "refunds  create" in out and "done: same 1, create 1" in err
    assert broker.ok("GET", "/topics/refunds")["retention_days"] == 2


def test_a_conflict_names_its_place_and_both_values(broker: Broker, topic: str) -> None:
    document = {"version": 1, "topics": [{"name": topic, "retention_days": 2}]}
    (step,) = broker.ok("POST", "/import", {"document": document, "dry_run": True})["steps"]
    assert (step["outcome"], step["differences"]) == (
        "conflict",
        [{"field": "retention_days", "here": 7, "there": 2}],
    )
    found = problem(
        broker.call("POST", "/import", {"document": document}), 409, "already_exists"
    )
    assert [one["field"] for one in found["errors"]] == ["topics[0]"]
    broker.ok("POST", "/import", {"document": document, "existing": "change"})
    assert broker.ok("GET", f"/topics/{topic}")["retention_days"] == 2


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "document"),
        ({"document": {"version": 1}, "existing": "merge"}, "existing"),
        ({"document": {"version": 1}, "apply": True}, "apply"),
        ({"document": {"version": 9}}, "version"),
        ({"document": {"version": 1, "topics": [{"name": "a b"}]}}, "topics[0].name"),
        ({"document": {"version": 1, "topics": [{"name": "a", "x": 1}]}}, "topics[0].x"),
    ],
)
def test_a_wrong_import_is_named_and_nothing_is_made(
    broker: Broker, body: Any, field: str
) -> None:
    found = problem(broker.call("POST", "/import", body), 400, "invalid")
    assert [one["field"] for one in found["errors"]] == [field]
    assert broker.ok("GET", "/topics")["topics"] == []


def test_a_pattern_chooses_topics(broker: Broker, topic: str, queue: int) -> None:
    found = broker.call("GET", "/export", params={"topic": "ord*"}).json()
    assert [one["name"] for one in found["topics"]] == [topic]
    problem(broker.call("GET", "/export", params={"topics": "ord*"}), 400, "invalid")


def test_a_document_may_have_thousands_of_entries(broker: Broker) -> None:
    broker.ok("POST", "/groups", {"name": "g0"})
    settings = {
        key: value
        for key, value in broker.ok("GET", "/export")["groups"][0].items()
        if key != "name"
    }
    groups = [{"name": f"g{number}", **settings} for number in range(2_000)]
    asked = {"document": {"version": 1, "groups": groups}, "dry_run": True}
    steps = broker.ok("POST", "/import", asked)["steps"]
    assert [one["outcome"] for one in steps].count("create") == 1_999
