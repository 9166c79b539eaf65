"""The rules for Prometheus that the how-to hands out: they parse, and they ask for metrics
that exist.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import yaml

from brokerapi.http.group_metrics import FiguresSnapshot, metric_families
from messagestore.inspect.node_counts import Figures, GroupFigures, TopicLag
from tests.support.environment import ROOT

DIRECTORY = ROOT / "examples" / "prometheus"
LABELS = {"group", "topic", "queue", "source", "instance"}


def rules() -> list[dict[str, Any]]:
    """Every rule of the file."""
    text = (DIRECTORY / "rules.yml").read_text()
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def told() -> dict[str, set[str]]:
    """Each metric of groups and topics with the names of its labels."""
    group = GroupFigures(id=1, name="g", lags=[TopicLag("t", 3, 1.5)], retries=2)
    figures = Figures(
        groups=[group], groups_left_out=0, topics=[("t", [(7, 3)])], topics_left_out=0
    )
    everything = FiguresSnapshot(figures, 0.0, members={}, dead={}, metadata_read_at=0.0)
    return {
        sample.name: set(sample.labels)
        for family in metric_families(everything, {1: (5, 4)})
        for sample in family.samples
    }


def test_every_rule_asks_for_metrics_and_labels_that_exist() -> None:
    known = told()
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        asked = set(re.findall(r"catmq[a-z0-9_:]+", rule["expr"]))
        assert asked and asked <= known.keys() | recorded, rule
        by = {
            name
            for found in re.findall(r"by \(([^)]*)\)", rule["expr"])
            for name in found.split(", ")
        }
        assert by <= LABELS, rule
        named = {
            name
            for text in rule.get("annotations", {}).values()
            for name in re.findall(r"labels\.(\w+)", text)
        }
        assert named <= by | set().union(*(known.get(one, LABELS) for one in asked)), rule


def test_the_pages_name_every_metric_of_groups() -> None:
    page = (ROOT / "docs/reference/server.md").read_text()
    assert [name for name in told() if f"`{name}`" not in page] == []


def test_promtool_takes_the_rules_where_it_is_installed() -> None:
    assert {rule["alert"] for rule in rules() if "alert" in rule} >= {
        "CatMQGroupIsLate",
        "CatMQFiguresAreOld",
    }
    promtool = shutil.which("promtool")
    if promtool is None:  # Debian's package prometheus has it
        return
    for command in (["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]):
        done = subprocess.run(
            [promtool, *command], cwd=DIRECTORY, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
