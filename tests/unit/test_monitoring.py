"""Rules and dashboard of deploy/monitoring: each asks for metrics and labels that exist.

tests/contract/test_dashboard.py runs all their queries in a Prometheus.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from brokerapi.http import installation_metrics, metrics
from brokerapi.http.group_metrics import FiguresSnapshot, metric_families
from messagestore.inspect.node_counts import Figures, GroupFigures, TopicLag
from metadata.monitoring.installation_counts import InstallationCounts, NodeCounts
from metadata.rules.disks import DiskState
from tests.support import debian
from tests.support.environment import ROOT

DIRECTORY = ROOT / "deploy" / "monitoring"
OF_PROMETHEUS = {"instance", "job"}  # labels that it adds to each sample
NAME = re.compile(r"\bcatmq[_:][a-z0-9_:]+")
SELECTOR = re.compile(r"\b(catmq[_:][a-z0-9_:]+)\{([^}]*)\}")


def rules() -> list[dict[str, Any]]:
    text = (DIRECTORY / "rules.yml").read_text()
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def targets() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the title of each panel with each of its queries."""
    for panel in json.loads((DIRECTORY / "dashboard.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target


def labels_by_metric() -> dict[str, set[str]]:
    """Return the names of the labels of every metric of a broker."""
    group = GroupFigures(id=1, name="g", lags=[TopicLag("t", 3, 1.5)], retries=2)
    figures = Figures(
        groups=[group],
        groups_left_out=0,
        topics=[("t", [(7, 3)])],
        topics_left_out=0,
        delayed_late_s={"main": 0.0},
    )
    counts = InstallationCounts(
        alarms={"lag": 1},
        nodes=[NodeCounts("main", 1, 2, DiskState.OK, 0)],
        last_job_age_s=1.0,
    )
    snapshot = FiguresSnapshot(
        figures,
        0.0,
        members={},
        dead={},
        metadata_read_at=0.0,
        installation=counts,
        generations={1: 4},
    )
    labels = {
        sample.name: set(sample.labels)
        for family in (
            *metric_families(snapshot, {1: (5, 4)}),
            *installation_metrics.broker_families(),
        )
        for sample in family.samples
    }
    for metric in vars(metrics).values():
        if isinstance(metric, MetricWrapperBase):
            suffix = {"counter": "_total", "histogram": "_bucket"}.get(metric._type, "")
            extra = {"le"} if suffix == "_bucket" else set()
            labels[metric._name + suffix] = {*metric._labelnames, *extra}
    return labels


METRICS = labels_by_metric()
RECORDED = {
    rule["record"]: set(
        re.split(", *", " ".join(re.findall(r"by \(([^)]*)\)", rule["expr"])[:1]))
    )
    for rule in rules()
    if "record" in rule
}


def check_query(expression: str) -> set[str]:
    """Check the names in a query. Return the labels that its metrics have."""
    names = set(NAME.findall(expression))
    known = METRICS | RECORDED
    assert names <= known.keys(), expression
    labels = OF_PROMETHEUS.union(*(known[name] for name in names))
    for name, matchers in SELECTOR.findall(expression):
        selected = set(re.findall(r"(\w+)\s*(?:=~?|!=|!~)", matchers))
        assert selected <= known[name] | OF_PROMETHEUS, expression
    for clause in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        assert set(clause.split(", ")) <= labels, expression
    return labels


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert", "record"))
def test_a_rule_asks_for_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    labels = check_query(rule["expr"])
    texts = " ".join(rule.get("annotations", {}).values())
    assert set(re.findall(r"labels\.(\w+)", texts)) <= labels


def test_every_alert_says_how_severe_it_is_and_what_is_wrong() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule
            assert rule["annotations"]["summary"], rule


@pytest.mark.parametrize(("title", "target"), [*targets()])
def test_a_panel_asks_for_metrics_and_labels_that_exist(
    title: str, target: dict[str, Any]
) -> None:
    labels = check_query(target["expr"])
    assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, title


def test_the_dashboard_can_be_imported_beside_any_data_source() -> None:
    text = (DIRECTORY / "dashboard.json").read_text()
    dashboard = json.loads(text)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {"catmq", "${datasource}"}
    names = [variable["name"] for variable in dashboard["templating"]["list"]]
    assert names == ["datasource", "group"]
    used = set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval", "__all"}
    assert used <= set(names)


def test_the_pages_name_every_metric() -> None:
    page = (ROOT / "docs/reference/server.md").read_text()
    names = [name.removesuffix("_bucket") for name in METRICS]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_promtool_accepts_the_rules_and_their_tests() -> None:
    promtool = debian.program("promtool", package="prometheus")
    for command in (
        ["check", "rules", "rules.yml"],
        ["test", "rules", "rules_test.yml"],
        ["check", "config", "prometheus.yml"],
    ):
        done = subprocess.run(
            [promtool, *command], cwd=DIRECTORY, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    # Each alert fires in a test of its own, so that none waits for something impossible.
    tested = (DIRECTORY / "rules_test.yml").read_text()
    for rule in rules():
        assert rule.get("alert", rule.get("record")) in tested, rule
