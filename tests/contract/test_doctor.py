"""The doctor over HTTP: what a healthy installation answers, a fault, and who may ask."""

from __future__ import annotations

from tests.support.broker import Broker, problem


def test_a_fault_is_reported_with_what_to_do(broker: Broker) -> None:
    keys = {finding["key"] for finding in broker.ok("GET", "/doctor")["findings"]}
    assert "node_offline" not in keys
    broker.ok("PATCH", "/nodes/main", {"state": "offline"})
    report = broker.ok("GET", "/doctor")
    (finding,) = (one for one in report["findings"] if one["key"] == "node_offline")
    assert finding == {
        "severity": "warning",
        "key": "node_offline",
        "kind": "node",
        "name": "main",
        "cause": "It is set offline, and was not examined.",
        "why": "Its queues take no messages and give none.",
        "remedy": "Open it when its database is ready: manage.py set_node main --state "
        "read_write.",
    }
    assert report["exit_code"] in (1, 2) and report["checks"] > 10


def test_it_needs_admin_on_everything(broker: Broker) -> None:
    some = broker.as_key({"admin": ["orders*"]})
    problem(some.call("GET", "/doctor"), 403, "forbidden")
