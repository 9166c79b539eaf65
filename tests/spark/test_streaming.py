"""Streams: every offset once in a file sink, also when the driver is killed in the middle."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_tasks.errors import JobError
from spark_tasks.nodes import plans
from spark_tasks.nodes.connection import SqliteNode
from spark_tasks.nodes.plans import Address, Plan, PlannedQueue
from spark_tasks.reading.options import parse_options
from spark_tasks.reading.streaming import CatmqStreamReader
from tests.spark.programs.stream_to_files import stream
from tests.spark.stage import Stage, streams
from tests.support.environment import ROOT
from tests.support.waiting import until

DRIVER = ROOT / "tests/spark/programs/stream_to_files.py"
START_S = 240


@streams
def test_a_stream_takes_up_what_comes_in_bounded_batches(
    stage: Stage, spark: SparkSession, tmp_path: Path
) -> None:
    topic = stage.topic("main")
    stage.fill(topic, 500)

    def run() -> list[int]:
        reader = (
            spark.readStream.format("catmq")
            .option("topic", topic)
            .option("maxOffsetsPerTrigger", 200)
        )
        writer = reader.load().writeStream.format("parquet").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "c")).start(
            str(tmp_path / "out")
        )
        assert query.awaitTermination(180)
        return [one.numInputRows for one in query.recentProgress if one.numInputRows]

    assert run() == [200, 200, 100]
    stage.fill(topic, 50)
    assert run() == [50]
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.count() == found.select("queue", "offset").distinct().count() == 550


@streams
def test_a_stream_has_headers_as_maps_by_option(
    stage: Stage, spark: SparkSession, tmp_path: Path
) -> None:
    topic = stage.topic("main")
    stage.fill(topic, 6)
    source = spark.readStream.format("catmq").option("topic", topic)
    stream = source.option("headers", "map").load().select("queue", "offset", "headers")
    writer = stream.writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start(
        str(tmp_path / "out")
    )
    assert query.awaitTermination(180)
    written = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {(row["queue"], row["offset"]): row["headers"] or {} for row in written} == {
        (m["queue"], m["offset"]): m.get("headers") or {} for m in stage.pulled(topic)
    }
    assert sorted(row["headers"]["n"] for row in written if row["headers"]) == ["0", "3"]


def test_a_driver_that_is_killed_goes_on_where_it_was(
    stage: Stage, spark: SparkSession, tmp_path: Path
) -> None:
    topic = stage.topic("maria")
    stage.fill(topic, 3_000)
    sink = tmp_path / "out"
    first = start(stage, topic, tmp_path)
    until(lambda: len(list(sink.glob("_spark_metadata/*"))) >= 2, limit_s=START_S)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait(30)
    assert first.returncode == -signal.SIGKILL, "it was still at work"
    second = stream(spark, topic, tmp_path).trigger(availableNow=True).start(str(sink))
    assert second.awaitTermination(START_S)
    found = (
        spark.read.parquet(str(sink))
        .groupBy("queue", "offset")
        .agg(F.count("*").alias("times"))
    )
    assert found.count() == 3_000
    assert found.where("times > 1").count() == 0


def start(stage: Stage, topic: str, directory: Path) -> subprocess.Popen[bytes]:
    """The driver as a process of its own, which leads its group: Java and the Python
    workers die with it.
    """
    environ = {
        **os.environ,
        "CATMQ_URL": stage.server.url,
        "CATMQ_API_KEY": stage.server.api_key,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'client/src'}",
    }
    command = [sys.executable, str(DRIVER), topic, str(directory)]
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            command, env=environ, stdout=log, stderr=log, start_new_session=True
        )


def test_a_checkpoint_of_a_topic_that_was_created_again_says_why_it_cannot_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    where = Address("main", "sqlite", "", 0, str(tmp_path / "main.db"), "", "", "")
    queues = [PlannedQueue(id, id - 7, f"message_{id}", 0, 10, (), where) for id in (7, 8)]
    monkeypatch.setattr(plans, "fetch", lambda topic, url: Plan(topic, tuple(queues)))
    reader = CatmqStreamReader(parse_options({"topic": "orders"}), ())
    with pytest.raises(JobError, match=r"queues 3, 4 .* deleted and created again"):
        reader.latestOffset({"4": 9, "3": 9}, ReadAllAvailable())
    with pytest.raises(JobError, match="new checkpoint location"):
        reader.partitions({"3": 9}, {"3": 9, "7": 10})
    assert reader.latestOffset({"3": 9, "7": 2}, ReadAllAvailable()) == {
        "3": 9,
        "7": 10,
        "8": 10,
    }
    assert len(reader.partitions({"3": 9, "7": 2}, {"3": 9, "7": 10})) == 1, (
        "one queue was removed"
    )


def test_a_key_with_a_nul_is_a_literal_of_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "main.db"
    sqlite3.connect(path).close()
    node = SqliteNode(Address("main", "sqlite", "", 0, str(path), "", "", ""))
    for text in ("a\0b", "o'b", "ü"):
        assert node._db.execute(f"SELECT {node.literal(text)}").fetchone() == (text,)
    node.close()
