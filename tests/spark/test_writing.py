"""Writes: rows become messages, once, also when a task is tried again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_tasks.reading.options import parse_options
from spark_tasks.reading.writing import CatmqWriter, batch_id
from tests.spark.stage import Stage, streams


def rows(spark: SparkSession, count: int, *, parts: int = 2) -> DataFrame:
    """Messages to send."""
    key = F.concat(F.lit("k"), (F.col("id") % 5).cast("string"))
    body = F.concat(F.lit("body "), F.col("id").cast("string"))
    headers = F.lit(json.dumps({"from": "spark"}))
    return spark.range(0, count, 1, parts).select(
        key.alias("key"), body.alias("body"), headers.alias("headers")
    )


def send(frame: DataFrame, topic: str, **options: object) -> None:
    """Writes a table to a topic."""
    writer = frame.write.format("catmq").mode("append").option("topic", topic)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save()


def test_rows_become_messages_in_the_order_of_their_key(
    stage: Stage, spark: SparkSession
) -> None:
    topic = stage.topic("maria")
    send(rows(spark, 1_000, parts=1), topic)
    found = stage.pulled(topic)
    assert len(found) == 1_000
    assert found[0]["headers"] == {"from": "spark"}
    for key in ("k0", "k4"):
        mine = [int(one["body_bytes"].split()[1]) for one in found if one["key"] == key]
        assert mine == sorted(mine)
    assert all(
        len({one["queue"] for one in found if one["key"] == key}) == 1
        for key in ("k0", "k1")
    )


def test_the_same_run_again_stores_nothing_twice(stage: Stage, spark: SparkSession) -> None:
    topic = stage.topic("maria")
    for _ in range(2):
        send(rows(spark, 600), topic, runId="load 7", chunkMessages=100)
    assert len(stage.pulled(topic)) == 600
    send(rows(spark, 600), topic, runId="load 8")
    assert len(stage.pulled(topic)) == 1_200


def test_a_task_that_fails_half_way_and_is_tried_again_stores_once(
    stage: Stage, spark: SparkSession
) -> None:
    topic = stage.topic("main")
    frame = rows(spark, 600, parts=1)
    options = parse_options({"topic": topic, "runId": "one run", "chunkMessages": "20"})
    batches = frame.toArrow().to_batches(max_chunksize=50)

    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches[:9]
        raise RuntimeError("the first try ends here")

    with pytest.raises(RuntimeError):
        CatmqWriter(options, frame.schema, overwrite=False).write(broken())
    assert 0 < len(stage.pulled(topic)) < 450
    assert (
        CatmqWriter(options, frame.schema, overwrite=False).write(iter(batches)).messages
        == 600
    )
    times = Counter(one["body_bytes"] for one in stage.pulled(topic))
    assert len(times) == 600
    assert set(times.values()) == {1}


@streams
def test_a_stream_from_topic_to_topic_arrives_once(
    stage: Stage, spark: SparkSession, tmp_path: Path
) -> None:
    source, target = stage.topic("maria"), stage.topic("main")
    stage.fill(source, 300)
    for _ in range(2):  # the second one begins at the checkpoint, and finds nothing new
        reader = spark.readStream.format("catmq").option("topic", source).load()
        writer = (
            reader.select("key", "body").writeStream.format("catmq").option("topic", target)
        )
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
            availableNow=True
        )
        assert query.start().awaitTermination(180)
    assert len(stage.pulled(target)) == 300


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (("key", "headers"), "column body is missing"),
        (("key", "body", "id"), "column id cannot be sent"),
    ],
)
def test_a_table_that_cannot_be_sent_is_refused(
    stage: Stage, spark: SparkSession, columns: tuple[str, ...], says: str
) -> None:
    frame = rows(spark, 3).withColumn("id", F.lit(1)).select(*columns)
    with pytest.raises(PySparkException, match=says):
        send(frame, stage.topic("main"))


def test_overwriting_and_unknown_topics_are_refused(
    stage: Stage, spark: SparkSession
) -> None:
    frame = rows(spark, 3)
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        frame.write.format("catmq").mode("overwrite").option(
            "topic", stage.topic("main")
        ).save()
    with pytest.raises(PySparkException, match="Topic nothing does not exist"):
        send(frame, "nothing")


def test_a_row_without_a_body_fails_the_write(stage: Stage, spark: SparkSession) -> None:
    frame = rows(spark, 3).withColumn("body", F.lit(None).cast("string"))
    with pytest.raises(PySparkException, match="a row has no body"):
        send(frame, stage.topic("main"))


def test_batch_ids_are_the_same_each_time_and_of_version_7() -> None:
    made = [batch_id("run", 1, (0, 3, number)) for number in range(100)]
    assert made == [batch_id("run", 1, (0, 3, number)) for number in range(100)]
    assert len(set(made)) == 100
    assert all(one[14] == "7" for one in made)
    assert batch_id("run", 2, (0, 3, 1)) > made[1]
