"""Every query of the dashboard and of the rules has a result in a real Prometheus that
scrapes a broker with something of everything.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from brokerapi.http import group_metrics
from brokerapi.http.group_metrics import Board
from messagestore.nodes import registry
from metadata.cache import snapshot
from metadata.db.clock import database_now
from metadata.models import Alarm, DbNode, JobRun
from metadata.nodes import size_rows
from tests.support.broker import Broker
from tests.support.environment import ROOT
from tests.support.members import reader
from tests.support.prometheus import Prometheus, prometheus
from tests.support.waiting import until
from tests.unit.test_monitoring import NAME, rules

DASHBOARD = ROOT / "deploy" / "monitoring" / "dashboard.json"


def fill(broker: Broker, queue: int) -> None:
    """Leave something for each panel: lag, a retry, a full node, an alarm, an error."""
    node = DbNode.objects.get(name="main")
    size_rows.record_sizes({node.pk: (4_000_000_000, 3)})
    DbNode.objects.filter(pk=node.pk).update(capacity_gb=5, disk="full", delayed_waiting=2)
    now = database_now()
    Alarm.objects.create(
        kind="lag", name="readers", detail="late", first_at=now, last_at=now, since_at=now
    )
    JobRun.objects.create(name="check_health", started_at=now - timedelta(seconds=20))
    broker.ok("POST", "/topics/single/messages", {"messages": [{"body": "x"}] * 9})
    broker.call("GET", "/topics/nope")
    member = reader(broker)
    member.pull(member.position(queue, 0), max_messages=9)
    place = {"queue": queue, "epoch": member.owned[queue], "offset": 0, "error": "busy"}
    broker.ok("POST", member.path + "/failures", {"messages": [place]})
    member.commit(member.position(queue, 4))
    registry.probe()
    snapshot.refresh()
    assert group_metrics.board.refresh()


def substitute(expression: str) -> str:
    """Replace the variables of Grafana."""
    return expression.replace("$__rate_interval", "1m").replace("$group", ".*")


def empty_panels(server: Prometheus) -> list[str]:
    """Return the titles of panels with a query that has no sample."""
    return [
        panel["title"]
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel.get("targets", ())
        if not server.query(substitute(target["expr"]))
    ]


@pytest.mark.one_engine
@pytest.mark.usefixtures("failure_node")
def test_every_query_has_a_result(
    broker: Broker,
    queue: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_metrics, "board", Board(None))
    fill(broker, queue)
    with prometheus(broker.url, tmp_path) as server:
        until(lambda: server.scrapes() >= 3, limit_s=60, every_s=0.1)
        # A rate needs two samples of a series, and the alert an evaluation after them.
        until(lambda: not empty_panels(server), limit_s=60, every_s=0.5)

        values = {
            name: server.query(name)[0][1]
            for name in (
                "max(catmq_group_lag_messages)",
                "max(catmq_alarms)",
                "max(catmq_node_disk_state)",
                "max(catmq_node_used_bytes)",
                "max(catmq_node_capacity_bytes)",
                "max(catmq_node_delayed_messages)",
                "max(catmq_send_seconds_count) > bool 0",
            )
        }
        assert list(values.values()) == [5, 1, 2, 4e9, 5e9, 2, 1], values
        (age,) = server.query("catmq_job_age_seconds")
        assert 20 <= age[1] < 80

        groups = server.get("rules")["groups"]
        evaluated = [rule for group in groups for rule in group["rules"]]
        assert [rule["name"] for rule in evaluated if rule["health"] != "ok"] == []
        assert len(evaluated) == len(rules())
        names = {name for rule in rules() for name in NAME.findall(rule["expr"])}
        assert {name for name in names if not server.query(name)} == set()
        fires = {alert["labels"]["alertname"] for alert in server.get("alerts")["alerts"]}
        assert {"CatMQNodeIsFull", "CatMQHasAlarms"} <= fires
