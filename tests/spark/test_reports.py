"""Reports against numbers from plain Python, and jobs as the server runs them: progress, cancel, history."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest

from tests.spark.stage import Stage
from tests.support.changes import events, source
from tests.support.waiting import until

Report = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def changes(stage: Stage, home: Any) -> tuple[str, list[dict[str, Any]]]:
    """A topic on MariaDB that holds the whole real input by path, and that input."""
    topic = stage.topic("maria", queues=4, name="changes")
    found = events(source(home))
    stage.send(topic, ({"body": json.dumps(one).encode(), "key": one["path"]} for one in found))
    return topic, found


@pytest.fixture
def report(stage: Stage) -> Report:
    """Runs manage.py report; its rows."""

    def run(name: str, *arguments: str) -> list[dict[str, Any]]:
        text = stage.server.manage("report", name, "--json", *arguments)
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    return run


@pytest.mark.parametrize("engine", ["direct", "spark"])
def test_the_volume_of_a_topic(
    changes: tuple[str, list[dict[str, Any]]], stage: Stage, report: Report, engine: str
) -> None:
    topic, sent = changes
    rows = report("volume", "--topic", topic, "--engine", engine)
    assert sum(row["messages"] for row in rows) == len(sent)
    assert {row["queue"] for row in rows} == set(stage.queues(topic))
    if engine == "spark":
        assert sum(row["bytes"] for row in rows) == sum(len(json.dumps(one)) for one in sent)
        assert sum(row["keys"] for row in rows) == len({one["path"] for one in sent}), "a key has one queue"


def test_topics_and_the_skew_of_their_keys(
    changes: tuple[str, list[dict[str, Any]]], stage: Stage, report: Report
) -> None:
    topic, sent = changes
    (row,) = report("topics", "--topic", topic, "--engine", "spark")
    counts = Counter(one["path"] for one in sent)
    most = max(counts.values())
    assert (row["keys"], row["busiest_share"]) == (len(counts), round(most / len(sent), 4))
    assert counts[row["busiest_key"]] == most
    assert (row["messages"], row["groups"], row["verdict"]) == (len(sent), 0, "unsubscribed")
    empty = stage.topic("main")
    (row,) = report("topics", "--topic", empty)
    assert row["verdict"] == "zombie"


def test_sizes_and_what_expires(changes: tuple[str, list[dict[str, Any]]], report: Report) -> None:
    topic, sent = changes
    rows = report("size_and_expiry", "--topic", topic, "--engine", "spark", "--days", "1")
    assert sum(row["messages"] for row in rows) == len(sent)
    assert sum(row["body_bytes"] for row in rows) == sum(len(json.dumps(one)) for one in sent)
    assert max(row["body_largest"] for row in rows) == max(len(json.dumps(one)) for one in sent)
    assert sum(row["expiring"] for row in rows) == 0, "all is of today, and kept for a week"
    later = report("size_and_expiry", "--topic", topic, "--days", "8")
    assert sum(row["expiring"] for row in later) == len(sent)


def test_what_nodes_get_a_day(changes: tuple[str, list[dict[str, Any]]], report: Report) -> None:
    topic, sent = changes
    (row,) = report("capacity", "--topic", topic, "--engine", "spark", "--days", "1")
    assert row["node"] == "maria"
    assert row["bytes_a_day"] == sum(len(json.dumps(one)) + 60 for one in sent)
    assert (row["total_bytes"], row["days_until_full"]) == (None, None), "it has no capacity"


def test_reports_and_their_runs_are_kept(changes: tuple[str, list[dict[str, Any]]], stage: Stage) -> None:
    said = stage.server.manage("report", "topics", "--topic", changes[0])
    number = said.rsplit("Kept as report ", 1)[1].strip().rstrip(".")
    code = f"r = Report.objects.get(pk={number}); print(r.rows.count(), r.engine)"
    assert asked(stage, code).split() == ["1", "direct"]


def asked(stage: Stage, code: str) -> str:
    """What Python code prints that speaks to the server's metadata."""
    imports = "from metadata.models import JobRun, Report; "
    return stage.server.manage("shell", "-v", "0", "-c", imports + code)


def test_a_run_can_be_cancelled_while_it_works(stage: Stage, tmp_path: Any) -> None:
    topic = stage.topic("maria", queues=1)
    stage.fill(topic, 3_000)
    said: list[str] = []

    def run() -> None:
        try:
            stage.server.manage("archive", topic, str(tmp_path), "--up-to-now", "--rows-per-second", "50")
        except AssertionError as error:
            said.append(str(error))

    thread = Thread(target=run)
    thread.start()
    until(lambda: list(tmp_path.glob("*/.draft-*")), limit_s=90)
    code = "print(JobRun.objects.filter(name='spark_archive').latest('id').pk)"
    stage.server.manage("cancel_job", asked(stage, code).strip())
    thread.join(90)
    assert "cancelled" in said[0]
    assert list(tmp_path.glob("*/day=*")) == []
    code = "print(JobRun.objects.filter(name='spark_archive').latest('id').state)"
    assert asked(stage, code).strip() == "cancelled"


def test_a_job_says_in_one_line_why_it_failed(stage: Stage, tmp_path: Any) -> None:
    with pytest.raises(AssertionError, match="Topic nothing does not exist"):
        stage.server.manage("archive", "nothing", str(tmp_path))
