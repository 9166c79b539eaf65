"""Reports against numbers from plain Python, and jobs as the server runs them: progress,
cancel, history.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles
from threading import Thread
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_tasks.jobs.__main__ import RUNS
from spark_tasks.jobs.running import Job
from tests.spark.stage import Stage
from tests.support.changes import events, source
from tests.support.waiting import until

Report = Callable[..., list[dict[str, Any]]]
Changes = tuple[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def changes(stage: Stage, home: Path) -> Changes:
    """A topic on MariaDB that holds the whole real input by path, and that input."""
    topic = stage.topic("maria", queues=4, name="changes")
    found = events(source(home))
    stage.send(
        topic, ({"body": json.dumps(one).encode(), "key": one["path"]} for one in found)
    )
    return topic, found


@pytest.fixture
def report(stage: Stage) -> Report:
    """Runs manage.py report; its rows."""

    def run(name: str, *arguments: str) -> list[dict[str, Any]]:
        text = stage.server.manage("report", name, "--json", *arguments)
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    return run


@pytest.fixture
def scan(report: Report, spark: SparkSession, tmp_path: Path) -> Report:
    """The same by the Spark job, in the session's Spark, which a command would start anew."""

    def run(name: str, *arguments: str, **settings: Any) -> list[dict[str, Any]]:
        (tmp_path / "inputs.json").write_text(json.dumps(report(name, *arguments)))
        (tmp_path / "settings.json").write_text(json.dumps(settings))
        job = Job(f"report_{name}", tmp_path)
        job._spark = spark
        RUNS[f"report_{name}"](job)
        return [
            json.loads(line)
            for line in (tmp_path / "report.jsonl").read_text().splitlines()
        ]

    return run


def test_the_volume_of_a_topic_by_a_command_that_starts_spark(
    changes: Changes, report: Report
) -> None:
    topic, sent = changes
    rows = report("volume", "--topic", topic, "--engine", "spark")
    assert sum(row["messages"] for row in rows) == len(sent)
    assert sum(row["bytes"] for row in rows) == sum(len(json.dumps(one)) for one in sent)
    assert sum(row["keys"] for row in rows) == len({one["path"] for one in sent}), (
        "a key has one queue"
    )


@pytest.mark.everyday
def test_topics_and_the_skew_of_their_keys(
    changes: Changes, report: Report, scan: Report
) -> None:
    topic, sent = changes
    (row,) = scan("topics", "--topic", topic)
    counts = Counter(one["path"] for one in sent)
    most = max(counts.values())
    assert (row["keys"], row["busiest_share"]) == (len(counts), round(most / len(sent), 4))
    assert counts[row["busiest_key"]] == most
    assert (row["messages"], row["groups"], row["verdict"]) == (
        len(sent),
        0,
        "unsubscribed",
    )


def test_sizes_and_what_expires(changes: Changes, report: Report, scan: Report) -> None:
    topic, sent = changes
    rows = scan("size_and_expiry", "--topic", topic, "--days", "1")
    assert sum(row["messages"] for row in rows) == len(sent)
    assert sum(row["body_bytes"] for row in rows) == sum(
        len(json.dumps(one)) for one in sent
    )
    assert max(row["body_largest"] for row in rows) == max(
        len(json.dumps(one)) for one in sent
    )
    assert sum(row["expiring"] for row in rows) == 0, "all is of today, and kept for a week"
    later = report("size_and_expiry", "--topic", topic, "--days", "8")
    assert sum(row["expiring"] for row in later) == len(sent)


def test_volume_by_day_and_the_sizes_of_bodies(stage: Stage, scan: Report) -> None:
    topic = stage.topic("maria", queues=2)
    stage.fill(topic, 300)
    for queue in stage.queues(topic):  # the older half is of yesterday
        where = (
            "msg_offset < "
            f"{len([one for one in stage.pulled(topic) if one['queue'] == queue]) // 2}"
        )
        past = "stored_at - INTERVAL 1 DAY"
        stage.execute(
            "maria", f"UPDATE {{message_{queue}}} SET stored_at = {past} WHERE {where}"
        )
    held = stage.pulled(topic)

    days: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for one in held:
        day = datetime.fromtimestamp(one["stored_at_ms"] / 1000, UTC).strftime("%Y-%m-%d")
        days.setdefault((one["queue"], day), []).append(one)
    assert {(row["queue"], row["day"]): row for row in scan("volume", "--topic", topic)} == {
        place: {
            "topic": topic, "queue": place[0], "day": place[1], "node": "maria", "problem": "",
            "messages": len(those), "keys": len({one["key"] for one in those}),
            "bytes": sum(len(one["body_bytes"]) for one in those),
        }
        for place, those in days.items()
    }  # fmt: skip

    for row in scan("size_and_expiry", "--topic", topic):
        sizes = sorted(
            len(one["body_bytes"]) for one in held if one["queue"] == row["queue"]
        )
        assert row["body_p99"] == pytest.approx(
            quantiles(sizes, n=100, method="inclusive")[98]
        )


def test_what_nodes_get_a_day(changes: Changes, stage: Stage, scan: Report) -> None:
    topic, sent = changes
    nodes = {str(queue): "maria" for queue in stage.queues(topic)}
    # Two days, or messages of before midnight (UTC) would be missing after it.
    (row,) = scan(
        "capacity", "--topic", topic, "--days", "2", days=2, topics=[topic], nodes=nodes
    )
    assert row["node"] == "maria"
    assert row["bytes_a_day"] == sum(len(json.dumps(one)) + 60 for one in sent) / 2
    assert (row["total_bytes"], row["days_until_full"]) == (None, None), (
        "it has no capacity"
    )


def test_what_departments_get(changes: Changes, scan: Report) -> None:
    topic, sent = changes
    (row,) = scan(
        "departments", "--topic", topic, "--days", "2", days=2, departments={topic: ""}
    )
    assert (row["department"], row["topics"], row["messages"]) == ("", 1, len(sent))
    assert row["bytes"] == sum(len(json.dumps(one)) + 60 for one in sent)


def asked(stage: Stage, code: str) -> str:
    """What Python code prints that speaks to the server's metadata."""
    imports = "from metadata.models import JobRun; "
    return stage.server.manage("shell", "-v", "0", "-c", imports + code)


def test_a_run_can_be_cancelled_while_it_works(stage: Stage, tmp_path: Path) -> None:
    topic = stage.topic("maria", queues=1)
    stage.fill(topic, 3_000)
    said: list[str] = []

    def run() -> None:
        try:
            stage.server.manage(
                "archive", topic, str(tmp_path), "--up-to-now", "--rows-per-second", "50"
            )
        except AssertionError as error:
            said.append(str(error))

    thread = Thread(target=run)
    thread.start()
    until(lambda: list(tmp_path.glob("*/.draft-*")), limit_s=240)
    code = "print(JobRun.objects.filter(name='spark_archive').latest('id').pk)"
    stage.server.manage("cancel_job", asked(stage, code).strip())
    thread.join(120)
    assert "cancelled" in said[0]
    assert list(tmp_path.glob("*/day=*")) == []
    code = "print(JobRun.objects.filter(name='spark_archive').latest('id').state)"
    assert asked(stage, code).strip() == "cancelled"


def test_a_job_says_in_one_line_why_it_failed(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="Topic nothing does not exist"):
        stage.server.manage("archive", "nothing", str(tmp_path))
