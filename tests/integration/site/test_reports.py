"""Reports as files, and the jobs that run once a day."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from catmq_site.background import daily, reporting, spark
from messagestore.engine.messages import NewMessage
from messagestore.inspect import light_reports
from messagestore.produce.publish import publish
from messagestore.topology import subscriptions, topics
from metadata import actors
from metadata.cache import snapshot
from metadata.db.clock import before, database_now
from metadata.groups import groups
from metadata.models import ConsumerGroup, DbNode, Report, Sample, Topic
from metadata.monitoring import metrics_history

ACTOR = actors.command("test")


@pytest.fixture
def topic(make_node: Callable[..., str]) -> str:
    """A topic of two queues that nobody uses."""
    topics.create(name="orders", queues=2, node=make_node("main"), actor=ACTOR)
    snapshot.refresh()
    return "orders"


def test_a_report_is_written_as_csv(topic: str, tmp_path: Path) -> None:
    path = tmp_path / "topics.csv"
    call_command("report", "topics", "--output", str(path), stdout=StringIO())
    with path.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["topic"], row["queues"], row["verdict"]) == (topic, "2", "zombie")


def report(*words: str) -> list[dict[str, Any]]:
    """Return the rows that `manage.py report` prints as JSON."""
    out = StringIO()
    call_command("report", *words, "--json", stdout=out)
    return [
        json.loads(line) for line in out.getvalue().splitlines() if line.startswith("{")
    ]


def test_the_volume_of_a_topic_is_counted_by_queue(topic: str) -> None:
    for _ in range(30):  # each goes to any of two queues
        publish(topic=topic, messages=[NewMessage(body=b"x")], batch_id=None, actor=ACTOR)
    rows = report("volume", "--topic", topic)
    queues = {one.queue.queue for one in topics.describe(name=topic, actor=ACTOR).queues}
    assert ({row["queue"] for row in rows}, sum(row["messages"] for row in rows)) == (
        queues,
        30,
    )


def test_a_report_of_latency_adds_up_what_was_sampled(topic: str) -> None:
    group_id = groups.create(name="slow", actor=ACTOR).id
    subscriptions.create(group="slow", topic=topic, start="earliest", actor=ACTOR)
    snapshot.refresh()
    at = metrics_history.start_of_step(before(database_now(), seconds=7_200), step_s=900)
    for model in (ConsumerGroup, Topic):  # they were there then
        model.objects.update(created_at=at)
    topic_id = snapshot.find_topic(topic).id
    for step_s in (60, 900):
        Sample.objects.create(
            at=at,
            step_s=step_s,
            topic_ref=topic_id,
            group_ref=group_id,
            messages=5,
            lag_ms=700,
        )
    (row,) = report("latency", "--topic", topic)
    assert (row["group"], row["messages"], row["waited_p99_ms"]) == ("slow", 5, 700)


@pytest.mark.one_engine
def test_a_report_is_kept_under_the_number_that_is_printed(topic: str) -> None:
    out = StringIO()
    call_command("report", "topics", "--topic", topic, stdout=out)
    number = int(out.getvalue().rsplit("Kept as report ", 1)[1].strip().rstrip("."))
    kept = Report.objects.get(pk=number)
    assert (kept.rows.count(), kept.engine) == (1, "direct")


def test_departments_have_the_sums_of_their_topics(topic: str) -> None:
    for name, department in (("bills", "sales"), ("refunds", "sales")):
        topics.create(name=name, queues=1, settings={"department": department}, actor=ACTOR)
        groups.create(name=f"{name}-readers", actor=ACTOR)
    snapshot.refresh()
    for reader, read in (
        ("bills-readers", "bills"),
        ("bills-readers", "refunds"),
        ("refunds-readers", "bills"),
    ):
        subscriptions.create(group=reader, topic=read, start="earliest", actor=ACTOR)
    snapshot.refresh()
    for name in ("bills", "refunds", "refunds"):
        publish(
            topic=name, messages=[NewMessage(body=b"x" * 100)], batch_id=None, actor=ACTOR
        )
    nobody, sales = light_reports.make_report(
        name="departments", topic=None, days=1, actor=ACTOR
    )
    assert (nobody["department"], nobody["topics"], nobody["queues"], nobody["groups"]) == (
        "",
        1,
        2,
        0,
    )
    assert (nobody["messages"], nobody["held"], nobody["bytes"]) == (0, 0, 0)
    assert (sales["department"], sales["topics"], sales["queues"], sales["groups"]) == (
        "sales",
        2,
        2,
        2,
    )
    assert (sales["messages"], sales["held"], sales["problem"]) == (3, 3, "")
    assert sales["bytes"] == sales["held_bytes"] >= 300


@pytest.mark.one_engine
def test_a_department_says_which_node_is_away(topic: str) -> None:
    DbNode.objects.filter(name="main").update(quarantined="it was restored")
    snapshot.evict()
    snapshot.refresh()
    (row,) = light_reports.make_report(name="departments", topic=None, days=1, actor=ACTOR)
    assert "main" in row["problem"]


@pytest.mark.one_engine
def test_a_report_is_written_as_parquet(topic: str, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "size.parquet"
    call_command("report", "size_and_expiry", "--output", str(path), stdout=StringIO())
    rows = parquet.read_table(path).to_pylist()
    assert [(row["topic"], row["messages"], row["oldest_at_ms"]) for row in rows] == [
        (topic, 0, None)
    ] * 2


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("name", "said"),
    [("x.xls", "must end in .csv or .parquet"), ("nowhere/x.csv", "there is no directory")],
)
def test_a_file_that_cannot_be_is_refused_before_work(
    topic: str, tmp_path: Path, name: str, said: str
) -> None:
    with pytest.raises(CommandError, match=said):
        call_command("report", "topics", "--output", str(tmp_path / name))
    assert Report.objects.count() == 0


@pytest.mark.one_engine
def test_a_row_that_lacks_a_column_has_nothing_there(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    rows = [{"a": 1}, {"a": 2.5, "b": "ü"}]
    reporting.save_report_file(rows, tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text().splitlines() == ["a,b", "1,", "2.5,ü"]
    reporting.save_report_file(rows, tmp_path / "x.parquet")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["x.csv", "x.parquet"], (
        "no draft is left"
    )


@pytest.mark.one_engine
def test_daily_reports_are_made_also_behind_one_that_fails(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = dataclasses.replace(
        daily.config, daily_reports=("nonsense", "topics", "volume")
    )
    monkeypatch.setattr(daily, "config", wanted)
    with pytest.raises(spark.JobFailed, match="nonsense is not a report"):
        daily.make_reports()
    assert sorted(Report.objects.values_list("name", flat=True)) == ["topics", "volume"]


@pytest.mark.one_engine
def test_a_scan_leaves_out_the_queues_of_a_node_that_cannot_be_read(topic: str) -> None:
    asked = {"topic": topic, "days": 1, "actor": ACTOR}
    settings, rows = reporting.prepare_spark_job(
        "size_and_expiry",
        light_reports.make_report(name="size_and_expiry", **asked),
        **asked,
    )
    assert (settings["away"], len(rows)) == ({}, 2)
    DbNode.objects.filter(name="main").update(quarantined="it was restored")
    snapshot.evict()
    snapshot.refresh()
    settings, _ = reporting.prepare_spark_job("size_and_expiry", rows, **asked)
    queues = settings["queues"][topic]
    assert settings["away"] == dict.fromkeys(
        queues, "Node main is quarantined: it was restored"
    )
