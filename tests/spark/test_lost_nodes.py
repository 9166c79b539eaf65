"""A node whose server is killed while Spark reads it, and what reports say of the others
meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from catmq_client.errors import CatmqError
from spark_tasks import archives
from spark_tasks.errors import JobError
from spark_tasks.jobs import archive
from spark_tasks.jobs.__main__ import RUNS, describe_error
from spark_tasks.jobs.running import Job
from spark_tasks.nodes import plans
from tests.spark.stage import Stage
from tests.spark.test_archiving import job
from tests.support import mariadb as servers
from tests.support.environment import free_port
from tests.support.mariadb import MariaDB
from tests.support.waiting import until

COUNT = 6_000  # several chunks of each queue
WAIT_S = 120


@pytest.fixture(scope="module")
def frail(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    """Node `frail` on a server of its own."""
    database = servers.start(tmp_path_factory.mktemp("frail"), port=free_port())
    with ExitStack() as stack:
        stack.callback(database.stop)
        schema = stack.enter_context(database.schema())
        name, password = stack.enter_context(database.reader(schema))
        before = stage.server.environ
        url = f"mysql://catmq:{database.password}@127.0.0.1:{database.port}/{schema}"
        stage.server.environ = {
            **before,
            "CATMQ_NODE_FRAIL_URL": url,
            "CATMQ_NODE_FRAIL_READER_PASSWORD": password,
        }
        stage.server.manage("register_node", "frail")
        stage.server.manage("set_reader", "frail", name)
        stage.server.environ = before
        yield database


@pytest.fixture(scope="module")
def topic(stage: Stage, frail: MariaDB) -> str:
    """A topic of two queues, the second on the frail node, and a group that reads it."""
    made = stage.topic("main", queues=1, name="torn")
    stage.admin.expand_topic(made, queues=1, node="frail")
    stage.fill(made, COUNT, keys=97)
    stage.admin.create_group("patient")
    stage.admin.subscribe("patient", made)
    return made


def kill(database: MariaDB) -> None:
    """kill -9."""
    os.kill(database.pid, signal.SIGKILL)
    until(lambda: not servers.is_alive(database), limit_s=WAIT_S)


def test_a_server_that_is_killed_in_mid_read_fails_the_archive_by_name_and_publishes_nothing(
    stage: Stage, spark: SparkSession, frail: MariaDB, topic: str, tmp_path: Path
) -> None:
    directory = tmp_path / "archive"
    gentle = {"rows_per_second": 400, "rows_per_partition": COUNT}
    made = job(
        spark,
        tmp_path / "one",
        topic=topic,
        archive=str(directory),
        up_to_now=True,
        **gentle,
    )
    said: list[str] = []

    def run() -> None:
        try:
            archive.run(made)
        except (JobError, PySparkException) as error:
            said.append(describe_error(error))

    thread = Thread(target=run)
    thread.start()
    until(lambda: list(directory.glob("*/.draft-*/_temporary/*")), limit_s=WAIT_S)
    kill(frail)
    thread.join(WAIT_S)
    frail.start()
    assert said and "node frail" in said[0].lower(), said
    assert archives.list_days(directory, topic) == []
    assert list((directory / topic).glob(".draft-*")) == []
    until(lambda: whole(stage, topic), limit_s=WAIT_S)
    archive.run(
        job(spark, tmp_path / "two", topic=topic, archive=str(directory), up_to_now=True)
    )
    (day,) = archives.list_days(directory, topic)
    assert (
        sum(
            one.rows
            for part in archives.read_parts(directory, topic, day)
            for one in part.ranges
        )
        == COUNT
    )


def whole(stage: Stage, topic: str) -> bool:
    """Whether the broker serves all messages again."""
    try:
        return len(stage.pulled(topic)) == COUNT
    except CatmqError:
        return False


def reported(
    stage: Stage, spark: SparkSession, topic: str, name: str, where: Path
) -> list[dict[str, Any]]:
    """The rows of a report by the Spark job in the session's Spark, with the server's own
    inputs.
    """
    code = (
        "import json; from catmq_site.background import reporting; from messagestore.inspect "
        "import light_reports; "
        "from metadata import actors; a = actors.command('test'); "
        f"rows = light_reports.make_report(name='{name}', topic='{topic}', days=7, actor=a); "
        f"print(json.dumps(reporting.prepare_spark_job('{name}', rows, topic='{topic}', "
        "days=7, actor=a)))"
    )
    settings, inputs = json.loads(stage.server.manage("shell", "-v", "0", "-c", code))
    where.mkdir()
    (where / "settings.json").write_text(json.dumps(settings))
    (where / "inputs.json").write_text(json.dumps(inputs))
    made = Job(f"report_{name}", where)
    made._spark = spark
    RUNS[made.name](made)
    return [json.loads(line) for line in (where / "report.jsonl").read_text().splitlines()]


def test_reports_tell_of_what_can_be_read_and_name_what_cannot(
    stage: Stage, spark: SparkSession, frail: MariaDB, topic: str, tmp_path: Path
) -> None:
    there, torn = stage.queues(topic)
    one_queue = [one for one in stage.pulled(topic) if one["queue"] == there]
    kill(frail)
    try:
        found = {
            name: reported(stage, spark, topic, name, tmp_path / name)
            for name in ("volume", "size_and_expiry", "topics", "capacity", "latency")
        }
    finally:
        frail.start()
    for name in ("volume", "size_and_expiry"):
        problems = {row["queue"]: row["problem"] for row in found[name]}
        assert problems[there] == "" and "frail" in problems[torn]
        (mine,) = (row["messages"] for row in found[name] if row["queue"] == there)
        assert mine == len(one_queue)
    (verdict,) = found["topics"]
    assert verdict["keys"] == len({one["key"] for one in one_queue})
    assert f"not of queues {torn}" in verdict["problem"] and "frail" in verdict["problem"]
    capacity = {row["node"]: row for row in found["capacity"]}
    assert "frail" in capacity["frail"]["problem"] and capacity["main"]["problem"] == ""
    (waits,) = found["latency"]
    assert waits["waiting"] == len(one_queue)
    assert f"not of queues {torn}" in waits["problem"]


def test_a_report_of_which_nothing_can_be_read_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "settings.json").write_text(
        json.dumps(
            {"away": {"7": "Node frail is away"}, "queues": {"torn": [7]}, "days": 1}
        )
    )
    rows = [{"topic": "torn", "queue": 7, "node": "frail", "problem": "Node frail is away"}]
    (tmp_path / "inputs.json").write_text(json.dumps(rows))
    made = Job("report_volume", tmp_path)
    made._spark = spark
    RUNS[made.name](made)
    (row,) = (
        json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()
    )
    assert (row["queue"], row["problem"]) == (7, "Node frail is away")


def test_a_broker_refuses_a_plan_whose_node_is_away_by_its_name(
    stage: Stage,
    spark: SparkSession,
    frail: MariaDB,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plans, "PATIENCE_S", 0.0)
    there, torn = stage.queues(topic)
    kill(frail)
    try:
        with pytest.raises(JobError, match="frail"):
            plans.fetch(topic)
        assert [one.queue for one in plans.fetch(topic, queues=[there]).queues] == [there]
        with pytest.raises(JobError, match="frail"):
            plans.fetch(topic, queues=[there, torn])
    finally:
        frail.start()
    with pytest.raises(JobError, match="999 is not a queue of topic"):
        plans.fetch(topic, queues=[999])
